"""What the toy corpus talks about: topics, prompt wordings, aspects and neutral facts, English and Chinese.

Nothing in this file carries sentiment (a test holds it to that): prompts are neutral, and a response that
only states a fact is worth 0. In every domain the last two topics and the last wording of each kind are held
out.
"""

from dataclasses import dataclass

HELD_OUT_TOPICS = 2  # per domain and language, counted from the end of `nouns`


@dataclass(frozen=True)
class Domain:
    """A family of topics that share prompt wordings, aspects and facts.

    nouns: topics; a Chinese one is "measure word|noun".
    subject_wordings: prompts that the response continues as their subject ("The new phone" + " is ...").
    colon_wordings: prompts that the response answers with a full sentence ("Review of the phone:").
    copula: "is" or "was" (English only).
    """

    nouns: tuple[str, ...]
    subject_wordings: tuple[str, ...]
    colon_wordings: tuple[str, ...]
    copula: str
    aspects: tuple[str, ...]
    facts: tuple[str, ...]


DOMAINS = {
    "en": {
        "gadget": Domain(
            nouns=("phone", "laptop", "camera", "keyboard", "tablet", "speaker", "smart watch", "printer"),
            subject_wordings=("The new {n}", "This {n}", "My {n}", "The {n} from the shop"),
            colon_wordings=("Review of the {n}:", "A word about this {n}:", "After a week with the {n}:"),
            copula="is",
            aspects=("design", "battery", "manual", "packaging", "case", "setup"),
            facts=(
                "comes in two colours", "went on sale in March",
                "ships with one cable", "weighs half a kilo",
            ),
        ),
        "story": Domain(
            nouns=("film", "novel", "series", "documentary", "play", "comic", "musical", "short story"),
            subject_wordings=(
                "The new {n}", "This {n}",
                "The {n} from last night", "That {n} everyone talks about",
            ),
            colon_wordings=("Review of the {n}:", "My view of this {n}:", "Notes on the {n}:"),
            copula="was",
            aspects=("plot", "ending", "opening", "dialogue", "pacing", "style"),
            facts=(
                "has three parts", "tells of two brothers",
                "follows a true case", "takes place in a harbour",
            ),
        ),
        "lesson": Domain(
            nouns=(
                "course", "lecture", "tutorial", "workshop",
                "seminar", "textbook", "training day", "lab class",
            ),
            subject_wordings=("The {n} I just finished", "This {n}", "Our {n}", "The {n} of last week"),
            colon_wordings=("Feedback on the {n}:", "My view of this {n}:", "Notes on the {n}:"),
            copula="was",
            aspects=("structure", "homework", "explanation", "first part", "last part", "teaching"),
            facts=(
                "has twelve units", "covers one topic a week",
                "starts with a quiz", "lasted until Friday",
            ),
        ),
        "food": Domain(
            nouns=(
                "restaurant", "bakery", "noodle shop", "canteen",
                "food stall", "tea house", "diner", "pizzeria",
            ),
            subject_wordings=("The new {n}", "This {n}", "The {n} at the corner", "The {n} near my office"),
            colon_wordings=("Review of the {n}:", "A word about this {n}:", "Lunch at the {n}:"),
            copula="was",
            aspects=("soup", "bread", "service", "dessert", "menu", "interior"),
            facts=("is on the second floor", "closes on Mondays", "has six tables", "opened in May"),
        ),
        "outing": Domain(
            nouns=(
                "trip", "weekend with friends", "picnic", "hike",
                "concert", "weather", "museum visit", "train ride",
            ),
            subject_wordings=("The {n} today", "Our {n}", "Yesterday the {n}", "All in all the {n}"),
            colon_wordings=("A note on the {n}:", "About our {n}:", "Diary, the {n}:"),
            copula="was",
            aspects=("view", "company", "mood", "journey", "evening", "music"),
            facts=("went on until six", "filled one afternoon", "took us to the lake", "began before noon"),
        ),
        "service": Domain(
            nouns=(
                "app", "website", "hotel", "delivery service",
                "gym", "library", "help desk", "new version",
            ),
            subject_wordings=("The {n} we chose", "This {n}", "The local {n}", "The {n} I tried"),
            colon_wordings=("Review of the {n}:", "My view of this {n}:", "First days with the {n}:"),
            copula="is",
            aspects=("layout", "staff", "booking", "search", "sign-up", "support"),
            facts=(
                "asks for an account", "is open all year",
                "sends a code by mail", "has a second entrance",
            ),
        ),
    },
    "zh": {
        "gadget": Domain(
            nouns=("部|手机", "台|电脑", "台|相机", "把|键盘", "块|平板", "个|音箱", "块|手表", "台|打印机"),
            subject_wordings=("这{m}{n}", "新发布的{n}", "我的{n}", "店里那{m}{n}"),
            colon_wordings=("{n}测评：", "关于这{m}{n}：", "用了一周{n}："),
            copula="",
            aspects=("外观", "电池", "说明书", "包装", "手感", "按键"),
            facts=("有两种颜色", "三月份上市", "附带一根数据线", "重半公斤"),
        ),
        "story": Domain(
            nouns=("部|电影", "本|小说", "部|电视剧", "部|纪录片", "出|话剧", "本|漫画", "出|音乐剧", "篇|故事"),
            subject_wordings=("这{m}{n}", "新出的{n}", "昨晚的{n}", "大家都在谈的{n}"),
            colon_wordings=("{n}短评：", "关于这{m}{n}：", "{n}札记："),
            copula="",
            aspects=("情节", "结局", "开头", "对白", "节奏", "人物"),
            facts=("分为三个部分", "讲的是两兄弟", "取材于真实案件", "发生在一座港口"),
        ),
        "lesson": Domain(
            nouns=("门|课程", "场|讲座", "套|教程", "场|研讨会", "次|培训", "本|教材", "节|公开课", "节|实验课"),
            subject_wordings=("刚学完的{n}", "这{m}{n}", "我们的{n}", "上周的{n}"),
            colon_wordings=("{n}反馈：", "关于这{m}{n}：", "{n}札记："),
            copula="",
            aspects=("结构", "作业", "讲解", "前半部分", "后半部分", "课件"),
            facts=("一共十二节", "每周讲一个主题", "从小测验开始", "持续到周五"),
        ),
        "food": Domain(
            nouns=("家|餐厅", "家|面馆", "家|咖啡馆", "个|小吃摊", "个|食堂", "家|面包店", "家|火锅店", "家|茶馆"),
            subject_wordings=("新开的{n}", "这{m}{n}", "街角的{n}", "公司附近的{n}"),
            colon_wordings=("{n}点评：", "关于这{m}{n}：", "在{n}吃午饭："),
            copula="",
            aspects=("汤", "点心", "服务", "茶水", "菜单", "环境"),
            facts=("开在二楼", "周一休息", "有六张桌子", "五月开业"),
        ),
        "outing": Domain(
            nouns=("次|旅行", "个|周末和朋友的聚会", "次|野餐", "次|徒步", "场|音乐会", "种|天气", "次|参观", "趟|火车之旅"),
            subject_wordings=("今天的{n}", "这{m}{n}", "我们的{n}", "总的说来{n}"),
            colon_wordings=("{n}小记：", "关于这{m}{n}：", "日记，{n}："),
            copula="",
            aspects=("风景", "路途", "气氛", "安排", "傍晚", "音乐"),
            facts=("持续到六点", "占了一个下午", "把我们带到湖边", "中午之前开始"),
        ),
        "service": Domain(
            nouns=("款|应用", "个|网站", "家|酒店", "家|快递公司", "家|健身房", "座|图书馆", "个|客服中心", "个|新版本"),
            subject_wordings=("这{m}{n}", "我们选的{n}", "本地的{n}", "我试过的{n}"),
            colon_wordings=("{n}点评：", "关于这{m}{n}：", "初识{n}："),
            copula="",
            aspects=("布局", "前台", "预订", "搜索", "注册流程", "售后"),
            facts=("需要一个账号", "全年开放", "会寄来验证码", "有第二个入口"),
        ),
    },
}

# Neutral padding; English puts it after a subject's predicate or before a full sentence.
ASIDES = {
    "en": ("on the whole", "to be honest", "in my opinion", "this time", "up to now", "as far as I can tell"),
    "zh": ("总体来说", "说实话", "在我看来", "这一次", "到目前为止", "就我所知"),
}
IT = {"en": "it", "zh": "整体"}
