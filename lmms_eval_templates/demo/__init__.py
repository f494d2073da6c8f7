"""The embedded benchmark and models, with which whole evaluations run on a laptop and nothing is downloaded."""
