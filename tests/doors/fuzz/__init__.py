"""Entry points for coverage-guided fuzzing. Apart from the rooms they fuzz: those must be imported under its eyes."""
