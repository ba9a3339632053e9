"""Arithmetic with the steps written out, a column at a time from the ones.

The layout is made for a model in which every digit is one token. The first line restates the
numbers at equal width, so that a column's digits stand where they always stand; each line after it
is one fact about single digits; `so` is followed by the column's digit and the digits before it, so
that the answer is never read backwards but copied from the line above.
"""

from __future__ import annotations

from random import Random

from examples.pie_tiny.corpus.sample import Sample, Split, chat

COLUMNS = ("ones", "tens", "hundreds", "thousands")
WORDS = {"+": "plus", "-": "minus", "*": "times"}
PROMPTS = ("What is {}?", "Compute {}.", "{} =", "How much is {}?", "Calculate {}.")


def arithmetic(random: Random, split: Split) -> Sample:
    """A sum, difference or product and its steps, ending in `Answer:`; half are of two 2-digit
    numbers.

    Pairs of 2-digit numbers for which `kept_back` holds appear only in the held-out split.
    """
    operator, operands = _exercise(random, split)
    value, steps = worked(operator, operands)
    return chat(
        "arithmetic",
        "",
        _prompt(random, operator, operands),
        f"{steps}Answer: {value}",
    )


def kept_back(a: int, b: int) -> bool:
    """True if this pair, in either order, is among the tenth of 2-digit pairs that training never
    sees.

    The hash's tens are what decides: every pair of last digits is then kept back with some tens and
    trained with others, so that no fact about single digits is missing from training.
    """
    low, high = (a, b) if a <= b else (b, a)
    return low >= 10 and high <= 99 and (low * 31 + high * 17) // 10 % 10 == 3


def worked(operator: str, operands: tuple[int, ...]) -> tuple[int, str]:
    """The value and the lines that lead to it, each with its newline.

    For sums and differences of numbers of up to four digits and products with one of up to two.
    """
    first, second, *more = operands
    if operator == "-":
        return _subtracted(first, second)
    if operator == "*":
        return _multiplied(first, second)
    value, steps = _added(first, second)
    for number in more:
        value, further = _added(value, number)
        steps += further
    return value, steps


def _exercise(random: Random, split: Split) -> tuple[str, tuple[int, ...]]:
    shape = random.random()
    if shape < 0.7:
        pair = _two_digit_pair(random, split) if shape < 0.5 else _unlike_pair(random)
        operator = random.choice("+-")
        return operator, _mostly_falling(random, pair) if operator == "-" else pair
    if shape < 0.82:
        pair = _number(random, random.choice((1, 2, 2, 2))), random.randint(0, 9)
        return "*", pair if random.random() < 0.75 else pair[::-1]
    if shape < 0.92:
        return "*", _two_digit_pair(random, split)
    return "+", _three(random, split)


def _added(a: int, b: int) -> tuple[int, str]:
    top, bottom = _aligned(a, b)
    lines = [f"{top}+{bottom}:\n"]
    carry, result, last = "", "", len(top) - 1
    for place in range(last + 1):
        x, y = top[last - place], bottom[last - place]
        total = int(x) + int(y) + int(carry or 0)
        fact = f"{COLUMNS[place]}: {x}+{y}" + (f"+{carry}" if place else "") + f"={total}"
        if place == last:
            result = f"{total}{result}"
            lines.append(f"{fact} so {result}\n")
        else:
            carry, result = str(total // 10), f"{total % 10}{result}"
            lines.append(f"{fact} carry {carry} so {result}\n")
    return int(result), "".join(lines)


def _subtracted(a: int, b: int) -> tuple[int, str]:
    """Takes the smaller from the larger; of a negative difference the first line says so."""
    top, bottom = _aligned(max(a, b), min(a, b))
    lines = [f"-({top}-{bottom}):\n" if a < b else f"{top}-{bottom}:\n"]
    borrow, result, last = 0, "", len(top) - 1
    for place in range(last + 1):
        x, taken = top[last - place], bottom[last - place]
        left = int(x) - int(taken) - borrow
        if place:
            taken += f"-{borrow}"
        borrow = int(left < 0)
        left += 10 * borrow
        result = f"{left}{result}"
        # The borrow is settled before the difference: two look-ups rather than one of both.
        lent = f"1{x}" if borrow else x
        lines.append(
            f"{COLUMNS[place]}: {x}-{taken} borrow {borrow}, {lent}-{taken}={left} so {result}\n"
        )
    return (-int(result) if a < b else int(result)), "".join(lines)


def _multiplied(a: int, b: int) -> tuple[int, str]:
    """By one digit, or by two through a partial product each and their sum."""
    if a < 10:
        a, b = b, a
    if b < 10:
        return _scaled(a, b)
    by_ones, ones_steps = _scaled(a, b % 10)
    by_tens, tens_steps = _scaled(a, b // 10)
    value, sum_steps = _added(by_ones, by_tens * 10)
    return value, f"{a}*{b}:\n{ones_steps}{tens_steps}{sum_steps}"


def _scaled(a: int, digit: int) -> tuple[int, str]:
    top = str(a)
    lines = [f"{top}*{digit}:\n"]
    carry, result, last = 0, "", len(top) - 1
    for place in range(last + 1):
        x = top[last - place]
        total = int(x) * digit
        fact = f"{COLUMNS[place]}: {x}*{digit}={total}"
        if place:
            fact += f", {total}+{carry}={total + carry}"
            total += carry
        if place == last:
            result = f"{total}{result}"
            lines.append(f"{fact} so {result}\n")
        else:
            carry, result = total // 10, f"{total % 10}{result}"
            lines.append(f"{fact} carry {carry} so {result}\n")
    return int(result), "".join(lines)


def _aligned(a: int, b: int) -> tuple[str, str]:
    """Both in decimal, the shorter one filled with zeros."""
    top, bottom = str(a), str(b)
    width = max(len(top), len(bottom))
    return top.zfill(width), bottom.zfill(width)


def _prompt(random: Random, operator: str, operands: tuple[int, ...]) -> str:
    sign = WORDS[operator] if random.random() < 0.2 else operator
    return random.choice(PROMPTS).format(f" {sign} ".join(map(str, operands)))


def _number(random: Random, digits: int) -> int:
    return random.randint(10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1)


def _two_digit_pair(random: Random, split: Split) -> tuple[int, int]:
    while True:
        pair = random.randint(10, 99), random.randint(10, 99)
        if kept_back(*pair) == split.held_out:
            return pair


def _unlike_pair(random: Random) -> tuple[int, int]:
    """Of 1 to 3 digits, but not both of two."""
    while True:
        widths = random.randint(1, 3), random.randint(1, 3)
        if widths != (2, 2):
            return _number(random, widths[0]), _number(random, widths[1])


def _mostly_falling(random: Random, pair: tuple[int, int]) -> tuple[int, int]:
    """Larger first, but for one in sixteen whose difference may be negative."""
    return pair if random.random() < 1 / 16 else (max(pair), min(pair))


def _three(random: Random, split: Split) -> tuple[int, int, int]:
    """Three numbers of which no step adds a pair of the other split."""
    while True:
        first, second = _two_digit_pair(random, split)
        third = _number(random, random.randint(1, 2))
        if split.held_out or not kept_back(first + second, third):
            return first, second, third
