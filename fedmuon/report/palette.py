"""Colours and dashes of the groups: after Okabe and Ito, safe for the colour-blind, 3:1 contrast on each ground."""

LIGHT = ("#0072b2", "#d55e00", "#00835c", "#b0488c", "#a87400", "#2b8fd0", "#5d4ea8", "#5c636b")
DARK = ("#56a8e8", "#ff8f4a", "#35c79c", "#e894c8", "#edb83d", "#9bd3ff", "#b3a5f2", "#b3bac2")
DASHES = ("solid", "dash", "dot", "dashdot")  # a colour comes again with another dash


def look(number: int) -> tuple[int, str]:
    """(index of a colour, dash) of a group."""
    return number % len(LIGHT), DASHES[number // len(LIGHT) % len(DASHES)]
