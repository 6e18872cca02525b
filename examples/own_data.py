"""Data of your own: a function that returns one data set (validation and test are cut from it) or a dict of splits.

PYTHONPATH=examples python src/run.py plugins=[own_data] data=parity data.args.rows=400 debug=smoke
"""

from datasets import Dataset

from skytune.config.targets import configurable


@configurable("data", "parity")
def parity(rows: int = 2000) -> Dataset:
    """Numbers in words, labelled odd or even."""
    digits = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    return Dataset.from_dict(
        {
            "text": [" ".join(digits[int(digit)] for digit in str(number)) for number in range(rows)],
            "label": [("even", "odd")[number % 2] for number in range(rows)],
        }
    )
