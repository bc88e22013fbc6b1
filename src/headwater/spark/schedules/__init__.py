"""Jobs at their times: what a schedule file says, what is due, and a server that runs it.
Never knows what a job does."""
