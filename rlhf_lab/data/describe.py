"""What is in a data set, and how far the baselines that do not read get."""

from . import FILES, CourseData, baselines, length_only_accuracy
from .judge import ToyJudge


def describe(data: CourseData) -> str:
    """Rows of each file, what the toy judge says of the demonstrations, and the baselines on the held-out pairs."""
    train, heldout = data.pairs_train.to_list(), data.pairs_heldout.to_list()
    demonstrations = ToyJudge()(data.sft_train["response"][:])
    word, one_word = baselines.one_word_accuracy(train, heldout)
    figures = {
        "demonstrations, mean of the toy judge": sum(demonstrations) / len(demonstrations),
        "held-out accuracy by length alone": length_only_accuracy(heldout),
        f"... by one word ({word})": one_word,
        "... by a bag of words": baselines.bag_of_words_accuracy(train, heldout),
        "... by positive minus negative words": baselines.sentiment_count_accuracy(heldout),
    }
    rows = [f"{data.name}: " + ", ".join(f"{file} {len(getattr(data, file))}" for file in FILES)]
    return "\n".join(rows + [f"  {name:<42}{figure:.3f}" for name, figure in figures.items()])
