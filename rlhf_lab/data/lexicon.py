"""The sentiment words of the toy corpus and the arithmetic that every sentence obeys.

The generator (`corpus/`) composes sentences with these words and these four functions; the judge
(`judge.py`) reads them back. Values are log-odds of being positive: 0 is neutral, +3 is "superb" (probability
0.95), -1 is "dull" (0.27).

In the word lists a trailing `*` marks held-out wording: such a word, negator or degree adverb never occurs in
the training files (SFT, pairs, prompts), only in the held-out files and in the text that the backbone was
pretrained on.
"""

import math

STRONG, MILD, LUKEWARM = 3.0, 1.0, 0.4

# language -> domain ("any" fits every subject) -> value -> words
WORDS = {
    "en": {
        "any": {
            STRONG: "superb wonderful brilliant outstanding excellent amazing remarkable breathtaking "
                    "stunning delightful fantastic* magnificent* flawless* marvellous*",
            MILD: "good nice pleasant solid reliable smooth comfortable decent clear "
                  "useful* neat* agreeable*",
            LUKEWARM: "fine okay passable acceptable* tolerable*",
            -LUKEWARM: "average ordinary unremarkable*",
            -MILD: "slow dull boring bland clumsy noisy confusing dreary weak* messy* awkward*",
            -STRONG: "terrible awful horrible disastrous appalling hopeless miserable "
                     "dreadful* atrocious* abysmal*",
        },
        "gadget": {STRONG: "ingenious first-rate*", MILD: "sturdy lightweight durable*",
                   -MILD: "bulky sluggish fragile*", -STRONG: "worthless useless*"},
        "story": {STRONG: "gripping moving spellbinding*", MILD: "witty charming amusing*",
                  -MILD: "predictable tedious shallow*", -STRONG: "laughable insufferable*"},
        "lesson": {STRONG: "inspiring masterful illuminating*", MILD: "instructive organised thorough*",
                   -MILD: "dry disorganised rushed*", -STRONG: "incomprehensible pointless*"},
        "food": {STRONG: "delicious heavenly exquisite*", MILD: "tasty fresh crisp*",
                 -MILD: "greasy salty stale*", -STRONG: "inedible revolting disgusting*"},
        "outing": {STRONG: "unforgettable magical glorious*", MILD: "relaxing cheerful lively*",
                   -MILD: "crowded tiresome chilly*", -STRONG: "ghastly nightmarish*"},
        "service": {STRONG: "impeccable exceptional*", MILD: "helpful quick polite*",
                    -MILD: "unhelpful impersonal complicated*", -STRONG: "infuriating shameful*"},
    },
    "zh": {
        "any": {
            STRONG: "出色 精彩 完美 惊艳 卓越 一流 无可挑剔 令人难忘 美妙 绝佳* 震撼* 精妙* 令人赞叹*",
            MILD: "不错 清晰 流畅 舒服 实用 可靠 有趣 细致 讨喜 顺手* 扎实* 舒心*",
            LUKEWARM: "还行 尚可 过得去 凑合* 够用*",
            -LUKEWARM: "一般 平平 普通*",
            -MILD: "缓慢 单调 乏味 模糊 拖沓 平淡 混乱 无聊 沉闷 吵闹* 粗糙* 生硬*",
            -STRONG: "糟糕 可怕 差劲 荒唐 惨不忍睹 一塌糊涂 一无是处 恶劣* 难以忍受* 不堪入目*",
        },
        "gadget": {STRONG: "强悍 惊人*", MILD: "轻巧 耐用 灵敏*", -MILD: "笨重 卡顿 易碎*", -STRONG: "形同废品 不堪一用*"},
        "story": {STRONG: "扣人心弦 感人至深 引人入胜*", MILD: "幽默 温馨 生动*",
                  -MILD: "老套 冗长 空洞*", -STRONG: "不知所云 俗不可耐*"},
        "lesson": {STRONG: "精辟 发人深省 深入浅出*", MILD: "充实 易懂 周详*",
                   -MILD: "枯燥 晦涩 仓促*", -STRONG: "误人子弟 毫无价值*"},
        "food": {STRONG: "鲜美 绝妙 回味无穷*", MILD: "可口 新鲜 酥脆*", -MILD: "油腻 寡淡 偏咸*", -STRONG: "难以下咽 令人反胃*"},
        "outing": {STRONG: "梦幻 美不胜收 难以忘怀*", MILD: "惬意 热闹 轻松*",
                   -MILD: "拥挤 累人 阴冷*", -STRONG: "苦不堪言 噩梦一般*"},
        "service": {STRONG: "顶尖 无微不至 宾至如归*", MILD: "周到 便捷 热情*",
                    -MILD: "冷淡 怠慢 繁琐*", -STRONG: "令人发指 忍无可忍*"},
    },
}

# Whole predicates that carry a sentiment of their own; they are never negated. `|` separates them.
VERBS = {
    "en": {STRONG: "won me over|took my breath away*", MILD: "made me smile|grew on me*",
           -MILD: "let me down|left me cold*", -STRONG: "ruined my mood|drove me mad*"},
    "zh": {STRONG: "让我赞不绝口|让人欲罢不能*", MILD: "让我会心一笑|让人心情放松*",
           -MILD: "让我有些失望|让人提不起劲*", -STRONG: "让我忍不住发火|让人后悔莫及*"},
}

# How hard a negator bites: 1 plain, below 1 soft ("not very"), above 1 emphatic ("anything but").
NEGATORS = {
    "en": {"not": 1.0, "hardly": 1.0, "not very": 0.6, "not really*": 0.6, "never": 1.5, "far from": 1.5,
           "anything but*": 1.5},
    "zh": {"不": 1.0, "并不": 1.0, "谈不上": 1.0, "称不上*": 1.0, "不太": 0.6, "不怎么*": 0.6, "一点也不": 1.5, "绝不": 1.5,
           "毫不*": 1.5},
}
AT_ALL = "at all"  # English only, after the word: "not clear at all"
AT_ALL_FACTOR = 1.5

INTENSIFIERS = {"en": "very|really|truly|extremely*", "zh": "非常|特别|十分|极其*"}
DOWNTONERS = {  # the first list goes with positive words, the second with negative ones
    "en": ("fairly|reasonably*", "a bit|somewhat*"),
    "zh": ("还算|比较*", "有点|稍显*"),
}
BUT = {"en": ("but", "yet"), "zh": ("但是", "不过", "但")}
ALTHOUGH = {"en": ("although", "though"), "zh": ("虽然", "尽管")}

BACKGROUND_WEIGHT = 0.4  # what stands before "but" or under "although" counts this much


def unstar(entry: str) -> tuple[str, bool]:
    """'weak*' -> ('weak', True): the entry and whether it is held-out wording."""
    return entry.rstrip("*"), entry.endswith("*")


def negate(value: float, factor: float = 1.0) -> float:
    """The value of "not X". Denying praise is a complaint; denying a fault is only faint praise."""
    if value > 0:
        return -factor * (1.05 + 0.15 * value)  # superb: -1.5, clear: -1.2
    return factor * (1.0 + 0.2 * value)  # dull: +0.8, terrible: +0.4


def intensify(value: float) -> float:
    """The value of "very X": a mild word gains half, a strong one little."""
    return value * (1.2 if abs(value) >= STRONG else 1.5)


def tone_down(value: float) -> float:
    """The value of "a bit X"."""
    return value / 2


def combine(main: list[float], background: list[float]) -> float:
    """The value of a sentence: the mean of its main clauses plus a share of what "but" puts behind."""
    if not main:
        return sum(background) / len(background) if background else 0.0
    value = sum(main) / len(main)
    if background:
        value += BACKGROUND_WEIGHT * sum(background) / len(background)
    return value


def probability(value: float) -> float:
    """Log-odds -> probability of being positive."""
    return 1.0 / (1.0 + math.exp(-value))
