"""The embedded benchmark and model, with which a whole evaluation runs on a laptop and nothing is downloaded."""
