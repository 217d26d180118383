"""Compare the samples of weights that `fit` has left on the tasks."""

from array import array
from collections.abc import Iterable, Sequence

from tfmagic.clusters.cells.features import CellFeature, Reports, Variants
from tfmagic.runs.given_hints import Hint
from tfmagic.system import features
from tfmagic.system.advice import in_notebook


class Weights(CellFeature):
    """The hint after a cell, call or script that has trained one model on several tasks."""

    name = "different_weights"

    def find_hints(self, reports: Reports) -> Iterable[Hint]:
        """Return the hint if the samples differ."""
        found = [(task.name, sample) for task, end in sorted(reports.items()) if (sample := self.sent(end))]
        return hint_of(found)

    def compare(self, variants: Variants) -> Iterable[str]:
        """Say whether `fit` has left equal weights in all variants; nothing where it was not in each."""
        samples = [next(filter(None, map(self.sent, reports)), b"") for _, reports in variants]
        if len(samples) < 2 or not all(samples):
            return []
        names = [name for name, _ in variants]
        differ = [n for n, sample in zip(names, samples, strict=True) if samples_differ(samples[0], sample)]
        if not differ:
            return ["The models ended with equal weights."]
        return [
            f"The models ended with other weights with {'; '.join(differ)} than with {names[0]}: equal seeds "
            "(keras.utils.set_random_seed) and equal global batches make them comparable."
        ]


FEATURE = Weights()


def hint_of(trained: Sequence[tuple[str, bytes]]) -> list[Hint]:
    """Return the hint if the samples of tasks, given with their names, differ."""
    differ = [name for name, sample in trained if samples_differ(trained[0][1], sample)]
    if not differ:
        return []
    compare = in_notebook(features.propose("compare", "; {} compares a model", "NAME"))
    advice = (
        f"fit has left different weights on {trained[0][0]} and {', '.join(differ)}: all tasks add "
        "equal gradients to the weights that they have, so these differed before. Load or set weights on all "
        f"tasks alike{compare}."
    )
    return [Hint("different-weights", advice)]


def samples_differ(one: bytes, other: bytes) -> bool:
    """Compare two samples of weights, but for the last digits, which processors can round differently."""
    if one[:4] != other[:4] or len(one) != len(other):
        return False  # models with other shapes
    pairs = zip(array("f", one[4:]), array("f", other[4:]), strict=True)
    return any(abs(a - b) > 1e-5 + 1e-3 * max(abs(a), abs(b)) or (a == a) != (b == b) for a, b in pairs)
