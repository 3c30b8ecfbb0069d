"""The mathematics reward against a table of (expected, completion, right?), decided by mathematics and not by a program."""

from __future__ import annotations

import logging
import re
import threading

import pytest

from runnel.llm.rewards.answers import answer_in
from runnel.llm.rewards.components import RewardComponent
from runnel.llm.rewards.judging import RewardJob, RewardPool
from runnel.llm.rewards.mathematics import math_answer

pytest.importorskip("math_verify")
logging.getLogger("math_verify").setLevel(logging.ERROR)

MATRIX = r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"
RIGHT = [
    # numbers
    ("42", "42"), ("42", "The answer is 42."), ("42", "so we get 42,"), ("42", r"$\boxed{42}$"), ("-7", "it is -7"),
    ("42", "42.0"),
    ("0.5", ".5"), ("0.5", "1/2"), ("1/2", "it is 0.5"), ("1,234", "1234"), ("1234", "That makes 1,234 in all."),
    ("1234.5", "1,234.5"),
    ("1000", r"\boxed{1{,}000}"), ("1000", r"\boxed{1\,000}"), ("0.001", "1e-3"), ("10^{-3}", "0.001"), ("1e6", "1000000"),
    ("7", "3 + 4 = 7"), ("42", "She pays $30 and then $12. The answer is $42."), ("18", "Janet makes 9 * 2 = $18 every day."),
    ("12", "There are 12 apples left."), ("reasons 3 + 4\n#### 7", "#### 7"),
    ("7", "The answer is 7, since there are 2 groups of them."),
    # fractions, percents
    (r"\frac{1}{2}", "1/2"), ("1/2", r"so $\boxed{\frac{1}{2}}$"), (r"\frac{3}{4}", r"$\dfrac34$"),
    (r"-\frac{1}{2}", r"\boxed{\frac{-1}{2}}"),
    (r"3\frac{1}{2}", r"\boxed{\frac{7}{2}}"), ("1/3", "0.333333"), ("50\\%", r"\boxed{50\%}"), ("50%", "50 %"),
    ("0.5", r"\boxed{50\%}"),
    ("12.5\\%", r"$\frac{1}{8}$"), ("3:2", r"\boxed{\frac{3}{2}}"),
    # tuples, intervals, sets
    ("(1, 2)", "(1, 2)"), ("(1, 2)", r"\boxed{(1, 2)}"), ("(1,2)", "The answer is (1, 2)."), ("(1, 2, 3)", r"$(1,2,3)$"),
    ("(0.5, 1)", r"\boxed{\left(\frac{1}{2}, 1\right)}"), ("[0, 1)", "[0, 1)"), ("[0, 1)", r"\boxed{[0, 1)}"),
    ("(-1, 1]", r"$(-1, 1]$"),
    (r"(-\infty, 2] \cup [3, \infty)", r"\boxed{[3,\infty)\cup(-\infty,2]}"), ("(3, oo)", r"$(3, \infty)$"),
    (r"x > 3", r"\boxed{(3,\infty)}"),
    (r"(3,\infty)", r"\boxed{x > 3}"), (r"\{1, 2\}", r"\boxed{\{2, 1\}}"), ("{1, 2}", r"$\{1,2\}$"),
    ("1, 2, 3", "3, 2, 1"), ("3, -3", "x = 3 or x = -3"),
    ("3, -3", r"$\boxed{3}$ and $\boxed{-3}$"), (r"\pm 3", "3 and -3"), (r"\emptyset", r"\boxed{\varnothing}"),
    (r"\mathbb{R}", r"\boxed{(-\infty,\infty)}"),
    # matrices, polynomials, pi, roots
    (MATRIX, rf"\boxed{{{MATRIX}}}"), (MATRIX, r"$\begin{bmatrix}1&2\\3&4\end{bmatrix}$"), ("x^2+1", "1 + x^2"),
    ("x^2+1", "$1 + x^2$"), ("x^2 + 1", "x**2 + 1"),
    ("(x+1)^2", r"\boxed{x^2+2x+1}"), ("3x^2-2x+1", "3x^2 - 2x + 1"), ("2xy", "2xy"), ("n(n+1)/2", r"$\frac{n^2+n}{2}$"),
    (r"2\pi", r"\boxed{2\pi}"),
    ("2 pi", r"$2\pi$"), (r"2\pi", "the area is 2 pi"), (r"\frac{3\pi}{4}", r"\boxed{\frac{3}{4}\pi}"), ("2π", "2*pi"),
    (r"2\pi", "6.283185"),
    (r"\sqrt{8}", r"\boxed{2\sqrt{2}}"), (r"2\sqrt{2}", "2 sqrt(2)"), (r"\frac{\sqrt{2}}{2}", r"$\frac{1}{\sqrt{2}}$"),
    # equations, units, text, functions
    ("x = 3", "3"), ("3", r"\boxed{x = 3}"), ("y = 2x + 1", "y = 2x + 1"), ("2x + y = 3", r"\boxed{y = 3 - 2x}"),
    ("5 cm", r"\boxed{5\text{ cm}}"),
    ("5", "It is 5 cm long."), (r"90^\circ", "90°"), (r"90^\circ", "90 degrees"), (r"\$42", "$42"),
    ("Monday", r"\boxed{\text{Monday}}"),
    ("no solution", "The answer is: no solution."), (r"\text{Evelyn}", r"\boxed{Evelyn}"), ("B", r"\boxed{\text{(B)}}"),
    ("B", "The answer is B."),
    ("5!", "120"), (r"\log_2 8", "3"), (r"1 + 2i", r"\boxed{2i + 1}"), (r"\binom{5}{2}", "10"), (r"$\frac12$", "0.5"),
    (r"\boxed{7}", "7"),
    # several boxes, lines
    ("4", r"First $\boxed{3}$. No, wait. It is $\boxed{4}$."),
    ("4", "Step 1: $x = 3$.\nStep 2: add 1.\nThe final answer is $4$. I hope it is correct."),
    ("4", r"\[ x = \boxed{4} \]"), ("9", "**Answer:** 9"),
    # written after the rules were
    ("72", "Natalia sold 48/2 = 24 clips in May. Altogether 48+24 = 72 clips."),
    ("10", "Weng earns 12/60 = $0.2 per minute. Working 50 minutes, she earned 0.2 x 50 = $10."),
    (r"\frac{4}{3}", r"The slope is $m = \frac{4}{3}$."),
    (r"(3, \frac{\pi}{2})", r"Therefore, the polar coordinates are $\boxed{\left( 3, \frac{\pi}{2} \right)}.$"),
    ("p - q", r"Hence $\boxed{p - q}$"), (r"\frac{14}{3}", r"f(-2)+f(-1)+f(0) = \boxed{\frac{14}{3}}"),
    ("6 - 5i", r"We get \[6 - 5i.\]"), (r"-\frac{2}{3}", "x = -2/3"), (r"x \in [-2,7]", r"\boxed{[-2,7]}"),
    ("[-2,7]", r"\boxed{x \in [-2,7]}"), ("1,-2", "The roots are 1 and -2."), ("5", "We need n = 5"),
    ("2k+2", r"\boxed{2k + 2}"), (r"\text{(C)}", r"\boxed{C}"), ("70,000", "He made a profit of $70,000"),
    ("70000", "profit: $70,000."), ("3", "So the total is 2+1=<<2+1=3>>3 bolts.\n#### 3"), ("0", r"$\boxed{0}$"),
    ("(2,-3)", "The vertex is (2, -3)"), ("x^3+3x-6", r"$\boxed{x^3 + 3x - 6}$"), ("17", r"The answer is \(17\)."),
    (r"\frac{270}{7}\text{ degrees}", r"\boxed{\frac{270}{7}}"), ("even", r"The function is \boxed{\text{even}}."),
    (r"3\sqrt{13}", r"d = $3\sqrt{13}$ units"), (r"11\sqrt2", r"\boxed{11\sqrt{2}}"),
    (r"5.4 \text{ cents}", r"\boxed{5.4}"), ("23", "### Final Answer\n23"),
    ("8", "Thus, there are **8** positive divisors."), ("100", "= 100 degrees"), ("2", "x = 2, so done."),
    (r"\frac{1}{2}", "probability of 1/2."), ("1.25", "$1.25"), ("4", "2^2 = 4"), ("-3", "y = -3."), ("25", "25%"),
    ("0.25", "25%"), (r"\dfrac{17}{50}", "17/50"), ("a^2 + b^2", "a^2+b^2"), (r"(-\infty, 5)", "x < 5"),
    ("12", r"The final answer is \boxed{12}. This uses 3 facts."), ("7", "7!=5040 is not it, the answer is 7"),
    ("4", "Answer: x = 4"), ("3x+4", "y' = 3x + 4"), (r"\tan x", r"$\tan(x)$"), ("e^2", "e^2"), (r"\frac{\pi}{6}", "pi/6"),
    (r"30^\circ", "30 degrees"), ("2.5", "5/2"), ("[1, 2, 3]", "[1, 2, 3]"),
]  # fmt: skip
WRONG = [
    ("42", "43"), ("42", ""), ("42", "no idea"), ("42", "-42"), ("42", "4.2"), ("42", "420"), ("-7", "7"), ("3", "5-3"),
    ("0.5", "5"), ("5", ".5"),
    ("1234", "1,235"), ("1", "1,234"), ("234", "1,234"), ("1", "1e-3"), ("3", "1e-3"), ("1/2", "1"), ("1/2", "2"),
    ("1/2", r"\boxed{\frac{1}{3}}"),
    ("1/3", "0.33"), (r"3\frac{1}{2}", r"\boxed{\frac{3}{2}}"), ("50\\%", "5"), ("0.5", r"\boxed{5\%}"),
    ("(1, 2)", "2"), ("(1, 2)", "1"), ("(1, 2)", "(2, 1)"), ("(1, 2)", r"\boxed{\{1, 2\}}"), (r"\{1, 2\}", "(2, 1)"),
    ("(1, 2)", "[1, 2]"), ("2", "(1, 2)"),
    ("(1, 2, 3)", "(1, 2)"), ("[0, 1)", "(0, 1)"), ("[0, 1)", "[0, 1]"), ("[0, 1)", "1"), ("1", "[0, 1)"),
    (r"(-\infty, 2]", "2"), (r"(3,\infty)", r"\boxed{x \ge 3}"),
    (r"\{1, 2\}", r"\boxed{\{1, 3\}}"), (r"\{1, 2\}", "2"), ("3, -3", "3"), ("3, -3", "-3"), ("1, 2, 3", "1, 2"),
    ("3", "x = 3 or x = -3"),
    (MATRIX, r"\boxed{\begin{pmatrix}1&3\\2&4\end{pmatrix}}"), (MATRIX, "4"), ("4", rf"\boxed{{{MATRIX}}}"),
    ("x^2+1", "x^2"), ("x^2+1", "y^2+1"), ("x^2+1", "1"),
    ("2", "2x"), ("2", "2x + 3"), ("3", "2x + 3"), ("2x+3", "3"), ("2x + 3", "2"), (r"2\pi", "2"), (r"2\pi", "pi"),
    ("2", r"2\pi"), ("2", "the area is 2 pi"),
    ("4", r"with $r = 2$ the area is 4\pi"), (r"\pi", "3.14"), (r"\pi", r"\frac{22}{7}"), (r"\sqrt{2}", "2"),
    ("2", r"\sqrt{2}"), ("2", "sqrt(2)"), (r"\sqrt{8}", r"\boxed{2\sqrt{3}}"),
    ("x = 3", "x = 4"), ("x = 3", "y = 3"), ("y = 2x + 1", "y = 2x + 2"), ("x^2 + y^2 = 4", "4"),
    ("Monday", r"\boxed{\text{Tuesday}}"), ("no solution", r"\boxed{\text{solution}}"),
    (r"\text{east}", r"\boxed{seat}"), ("listen", "silent"), ("B", r"\boxed{C}"), ("B", "The answer is C."),
    ("3", r"First $\boxed{3}$. No, wait. It is $\boxed{4}$."),
    ("3", r"$\boxed{3}$ and then \boxed{4"), ("4", r"$\boxed{?}$ and 4"), ("5!", "5"), ("1 + 2i", "1"),
    ("2", r"\boxed{x_2}"), (r"\infty", r"\boxed{-\infty}"), ("0", r"\boxed{10^{-9}}"),
    (r"10^{-9}", "0"), ("10", r"\boxed{10^{-3}}"), ("7", "7 or 8"), ("30", "She pays $30 and then $12."),
    # written after the rules were
    ("72", "48+24 = 71"), ("10", "she earned $1.0"), ("5", "x < 5"), ("(2,-3)", "-3"), ("3", "#### 13"), ("8", "**18**"),
    ("1", "the answer is 1/2"), ("2", "the answer is 1/2"), ("4", "x^4"), ("4", "2^{4}"), ("3", "3.5"), ("5", "3.5"),
    ("7", "7!"), ("x", "x^2"), ("6", "6 - 5i"), ("2", "log_2 8"), ("25", "2.5%"), ("1", "1 and -2"), ("9", "9 < x"),
    ("3", "3x"), ("0", "10"), ("12", "12:30"), ("3", "-3"), ("5", r"\boxed{5x}"), ("1", "x=1,y=2"), ("2", "[1, 2, 3]"),
    ("[1,2,3]", "[1,2]"), ("[1, 2, 3]", "[3,2,1]"), ("2", "2 + x"), ("1/2", "1/2/2"),
]  # fmt: skip
KNOWN = {
    (r"e^{i\pi}", r"\boxed{-1}"): "math-verify reads i as a real symbol",
    ("1200", "1200 m^2"): "a unit of one letter is read as a variable",
}
"""Right answers that are not accepted, with the reason."""


def scored(pairs):
    return math_answer([""] * len(pairs), [c for _, c in pairs], answer=[a for a, _ in pairs])


def test_the_table_is_large_enough():
    assert len(RIGHT) == len(set(RIGHT)) >= 140
    assert len(WRONG) == len(set(WRONG)) >= 110


def test_right_answers_are_accepted():
    assert [pair for pair, score in zip(RIGHT, scored(RIGHT), strict=True) if score != 1.0] == []


def test_wrong_answers_are_not_accepted():
    assert [pair for pair, score in zip(WRONG, scored(WRONG), strict=True) if score != 0.0] == []


def test_what_is_known_to_be_missed():
    assert scored(list(KNOWN)) == [0.0] * len(KNOWN)
    assert len(KNOWN) <= 2


@pytest.mark.parametrize("expected", [1.0, 0.0])
def test_agreement_with_math_verify_itself_where_both_sides_are_in_a_box(expected):
    """Its own reading of both, where no choice of what is the answer is left; sets against tuples are meant to differ."""
    from math_verify import parse, verify

    pairs = [(a, c) for a, c in (RIGHT if expected else WRONG) if re.fullmatch(r"\\boxed\{.*\}", c) and r"\{" not in a + c]
    plain = [(a, c) for a, c in pairs if not re.search(r"varnothing|\\,|[<>]|oo", a + c)]
    theirs = [float(verify(parse(rf"\boxed{{{a}}}"), parse(c))) for a, c in plain]
    assert len(plain) > 8
    assert theirs == scored(plain) == [expected] * len(plain)


def test_the_answer_is_a_whole_piece():
    assert answer_in("we get (1, 2).") == "(1, 2)"
    assert answer_in("the area is 2 pi square units") == "2 pi"
    assert answer_in("I think a 5") == "5"
    assert answer_in(r"\boxed{1}, then \boxed{2} or \boxed{3}") == "2, 3"
    assert answer_in(r"\boxed{1") is None
    assert answer_in("(see 5)") == "5"
    assert answer_in("(" * 2000) is None
    assert answer_in("") is None


@pytest.mark.parametrize("odd", [r"\boxed{9^{9^{9^{9}}}}", "(" * 20_000, "a " * 20_000, "1," * 20_000, r"\boxed{" * 3000])
def test_what_takes_for_ever_ends(odd, monkeypatch):
    monkeypatch.setattr("runnel.llm.rewards.mathematics.LIMIT_S", 1)
    assert scored([("1", odd)]) == [0.0]


def test_in_threads_there_is_no_alarm():
    found = []
    thread = threading.Thread(target=lambda: found.extend(scored([("1/2", "0.5"), ("(1, 2)", "2")])))
    thread.start()
    thread.join()
    assert found == [1.0, 0.0]


def test_through_the_pool():
    pool = RewardPool([RewardComponent("math", "math")])
    pool.submit(RewardJob(0, [""] * 2, ["(1, 2)", "2"], {"answer": ["(1, 2)"] * 2}))
    (verdict,) = pool.collect(block=True)
    pool.close()
    assert verdict.rewards == {"math": [1.0, 0.0]}
