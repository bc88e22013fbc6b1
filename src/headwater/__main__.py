"""Lets `python -m headwater` be the `headwater` command.

Owns no option and no behaviour: the command line is `headwater.cli.main`.
"""

from headwater.cli.main import app

if __name__ == "__main__":
    app(prog_name="headwater")
