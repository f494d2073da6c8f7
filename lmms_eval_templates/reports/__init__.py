"""From lmms-eval's logs to tables, statistics, pictures, one HTML page, submissions and a leaderboard.

logs (files) -> runs (chosen and checked) -> summary (statistics) -> layouts (which tables) -> tables (Markdown, CSV,
LaTeX), figures, page; report puts them into a folder. submission and leaderboard stand on summary as well.
"""
