"""The drill in a terminal: one blank after the other."""

import textwrap
from pathlib import Path

from .blanks import mark
from .game import RULES, Round, new_round
from .scores import Scores, trend

TRIES = 2
HELP = "Write what is missing. ? gives a hint, Enter alone skips, q ends the round."


class _Quit(Exception):
    """The player ends the round."""


def play(solutions: Path, scores: Scores, snippet: str, share: float, seed: int | None) -> None:
    """Rounds until the player has enough; one round where a seed is given.

    `q`, Ctrl-C and the end of the input end a round; what was answered until then is kept.

    Raises:
        LabError: when there is no such snippet, share or seed, or the judge cannot be started.
    """
    while True:
        game = new_round(solutions, snippet, share, seed)
        print(_opening(game))
        try:
            for number in game.numbers:
                _play_blank(game, number)
            goes_on = seed is None
        except (_Quit, EOFError, KeyboardInterrupt):
            print()
            goes_on = False
        _close(game, scores)
        if not goes_on or not _another():
            return


def _opening(game: Round) -> str:
    drawn = game.draw
    again = f"--snippet {drawn.snippet.name} --seed {drawn.seed} --share {drawn.share:g}"
    hidden = f"{len(drawn.blanks)} blanks hide {drawn.hidden} of {drawn.places} places."
    code = textwrap.indent(game.code(), "    ")
    rules = textwrap.fill(f"{hidden} {HELP} {RULES}", 100)
    return f"\n{game.title}\nThe same blanks again: python -m rlhf_lab cloze {again}\n\n{code}\n{rules}\n"


def _play_blank(game: Round, number: int) -> None:
    """Ask for one blank until it is right, shown, skipped or tried often enough."""
    line = next(line for line in game.code().splitlines() if mark(number) in line)
    print(f"\n{number}   {line.strip()}")
    tries = 0
    while number in game.open:
        answer = input("> ").strip()
        if answer == "q":
            raise _Quit
        if answer == "?":
            print(f"    {game.hint(number)}")
        elif not answer:
            print(f"    Skipped. It is {game.give_up(number)}.")
        else:
            verdict = game.answer(number, answer)
            tries += verdict.read
            print(f"    {verdict.sentence if verdict.right else f'Not right. {verdict.sentence}'}")
            if not verdict.right and tries == TRIES:
                print(f"    It is {game.give_up(number)}.")


def _close(game: Round, scores: Scores) -> None:
    """Say how it went, and keep it, unless nothing was tried."""
    if not game.begun:
        print("Nothing was answered, so nothing is kept.")
        return
    left = game.open
    for number in left:
        print(f"{number}   It is {game.give_up(number)}.")
    print(f"\n{game.title}: {game.score_line}.")
    if problem := scores.add(game.to_score()):
        print(problem)
    if rounds := scores.rounds():
        print(trend(rounds))


def _another() -> bool:
    try:
        return input("\nEnter draws again, q ends: ").strip() != "q"
    except (EOFError, KeyboardInterrupt):
        print()
        return False
