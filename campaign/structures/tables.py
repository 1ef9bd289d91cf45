"""Text tables: CSV, TSV and the sparse rows of SVM-light."""

from __future__ import annotations

from random import Random

from structures.values import COUNTS, TEXTS, GeneratedFile, extreme_value, short


def csv_file(good: bytes, random: Random) -> GeneratedFile:
    """A table with extreme cells, many or long rows, more columns, or repeated names."""
    text = good.decode("utf-8-sig", "replace")
    mark = max(",;\t", key=text.splitlines()[0].count) if text.strip() else ","
    rows = [line.split(mark) for line in text.splitlines()]
    how = random.randrange(10)
    words = "as it was"
    row, column = random.randrange(len(rows)), random.randrange(len(rows[0]))
    if how < 4:
        value = extreme_value(random)
        rows[row][min(column, len(rows[row]) - 1)] = str(value)
        words = f"cell {row}, {column} = {short(value)}"
    elif how == 4:
        rows += rows[1:] * (count := random.choice((10, 1000, 20_000)))
        words = f"the rows {count} times"
    elif how == 5:
        count = random.choice((10, 1000, 100_000))
        rows = [
            one + [str(number) for number in range(count)] if place < 3 else one
            for place, one in enumerate(rows)
        ]
        words = f"{count} more columns"
    elif how == 6:
        rows[0] = [rows[0][0]] * len(rows[0])
        words = "all columns have one name"
    elif how == 7:
        rows[row] = ['"' + "a" * 3_000_000]
        words = "a quote that is not closed, of 3 MB"
    elif how == 8:
        rows = (
            [rows[0], *([f"{number}", *rows[1][1:]] for number in range(random.choice(COUNTS)))]
            if len(rows) > 1
            else rows
        )
        words = "as many names as rows"
    else:
        rows[row][0] = random.choice(TEXTS)
        words = f"the first cell of row {row} = {short(rows[row][0])}"
    return "\n".join(mark.join(one) for one in rows).encode("utf-8", "surrogatepass") + b"\n", words


def svm_file(good: bytes, random: Random) -> GeneratedFile:
    """Sparse rows with extreme indices and values."""
    rows = random.choice((2, 100, 1000, 5000))
    index = random.choice((1, 100, 100_000, 10**6, 10**6 + 1, 2**31, 2**62, -1, 0))
    value, label = (
        random.choice((1, 0.5, "nan", "inf", 1e300)),
        random.choice((1, -1, 0, 10**9, "nan", "x")),
    )
    lines = [f"{number}:{number % 7}:{label} 1:1 {index}:{value}" for number in range(rows)]
    return "\n".join(lines).encode(), f"{rows} rows, index {index}, value {value}, label {label}"
