"""From lmms-eval's logs to tables, statistics, pictures, one HTML page, submissions and a leaderboard."""
