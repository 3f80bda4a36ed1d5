"""Figures from samples: medians, spreads and ratios."""

import statistics

FLAGGED_SPREAD = 0.10


def spread(samples):
    """The middle half of the samples over their median; None for fewer than three."""
    if len(samples) < 3:
        return None
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return (high - low) / statistics.median(samples)


def is_flagged(samples):
    found = spread(samples)
    return found is not None and found > FLAGGED_SPREAD


def ratio(numerator, denominator):
    """Ratios of the same round: median, lowest and highest. Samples may be of fewer rounds, the
    first ones."""
    ratios = [a / b for a, b in zip(numerator, denominator)]
    return statistics.median(ratios), min(ratios), max(ratios)
