"""The drill: what is hidden, what counts as right, hints, points, scores, and both ways to play."""

import ast
import json
import re
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from authoring.execute import without_widgets
from authoring.paths import SOLUTIONS, STUBS
from rlhf_lab import notebook as lab
from rlhf_lab.cli import CHECKOUT, main
from rlhf_lab.cloze import judge as judging
from rlhf_lab.cloze.blanks import LEAST_SHARE, MOST_SHARE, Blank, all_blanks, draw, mark
from rlhf_lab.cloze.game import POINTS, Round, new_round
from rlhf_lab.cloze.hints import STEPS, hint
from rlhf_lab.cloze.judge import Judge
from rlhf_lab.cloze.scores import Scores, to_table
from rlhf_lab.cloze.snippets import ANY, MODULE_OF, bare, load_snippet
from rlhf_lab.cloze.terminal import play
from rlhf_lab.cloze.widget import Drill
from rlhf_lab.errors import LabError

NAMES = list(MODULE_OF)
SNIPPETS = {name: load_snippet(name, SOLUTIONS) for name in NAMES}


@pytest.fixture(scope="module")
def judge():
    """Judges by snippet; all share one process, which may be slow on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "LIMIT", 60)
        yield lambda name: Judge(SNIPPETS[name], SOLUTIONS)
    judging._worker(SOLUTIONS).close()


def blank_at(name: str, line: str) -> Blank:
    """The blank that stands between « and » in a line of a snippet."""
    before, text, after = re.fullmatch("(.*)«(.*)»(.*)", line).groups()
    start = SNIPPETS[name].text.index(before + text + after) + len(before)
    (found,) = [
        blank
        for blank in all_blanks(SNIPPETS[name])
        if (blank.start, blank.end) == (start, start + len(text))
    ]
    return found


# --- snippets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_snippet_is_what_the_solutions_hold(name):
    (module,) = (SOLUTIONS / f"{MODULE_OF[name]}.py",)
    (node,) = [n for n in ast.parse(module.read_text()).body if getattr(n, "name", "") == name]
    for inner in ast.walk(node):
        if isinstance(inner, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(inner):
            del inner.body[0]
    text = SNIPPETS[name].text
    assert ast.dump(ast.parse(text).body[0]) == ast.dump(node)
    assert "#" not in text and '"""' not in text and "\n\n\n" not in text
    assert all(line in module.read_text() for line in text.splitlines())


def test_the_text_is_taken_when_it_is_asked_for(tmp_path):
    shutil.copy(SOLUTIONS / "reward_model.py", tmp_path)
    path = tmp_path / "reward_model.py"
    path.write_text(path.read_text().replace("(r_chosen > r_rejected)", "torch.gt(r_chosen, r_rejected)"))
    assert "torch.gt" in load_snippet("rm_loss", tmp_path).text
    path.write_text("def rm_loss(:\n")
    with pytest.raises(LabError, match="does not parse"):
        load_snippet("rm_loss", tmp_path)
    path.unlink()
    with pytest.raises(LabError, match="is missing"):
        load_snippet("rm_loss", tmp_path)


def test_comments_and_docstrings_go_and_texts_stay():
    text = 'def f():\n    """Says.\n\n    More.\n    """\n\n    # why\n    x = "# no comment"  # yes\n\n    return x\n'
    assert bare(text) == 'def f():\n    x = "# no comment"\n\n    return x\n'


# --- blanks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_blank_can_be_answered_with_what_stands_there(name, judge):
    judge_it, blanks = judge(name), all_blanks(SNIPPETS[name])
    assert len(blanks) >= 20
    for blank in blanks:
        assert SNIPPETS[name].text[blank.start : blank.end] == blank.text
        assert judge_it.judge(blank, f"  {blank.text} ").sentence == "Right."
        if blank.form == "expression" and not isinstance(ast.parse(blank.text).body[0].value, ast.Tuple):
            assert judge_it.judge(blank, f"({blank.text})").right
    assert judge_it._worker.difference(SNIPPETS[name], SNIPPETS[name].text) is None


@pytest.mark.parametrize("name", NAMES)
def test_draws_are_reproducible_and_hide_what_was_asked_for(name):
    drawn = []
    for share in (LEAST_SHARE, 0.15, 0.3, 0.45, MOST_SHARE):
        for seed in range(12):
            one = draw(SNIPPETS[name], share, seed)
            assert one == draw(SNIPPETS[name], share, seed)
            assert abs(one.hidden - max(1, round(share * one.places))) <= (share > 0.5)
            assert len(set().union(*(blank.places for blank in one.blanks))) == one.hidden
            assert all(a.end <= b.start for a, b in zip(one.blanks, one.blanks[1:], strict=False))
            operations = [blank.operation for blank in one.blanks]
            assert len(set(operations)) == len(operations)
            drawn.append(one.with_blanks())
    assert len(set(drawn)) > 40


@pytest.mark.parametrize("name", NAMES)
def test_a_draw_shows_numbered_blanks_of_one_width(name):
    one = draw(SNIPPETS[name], 0.3, 5)
    shown = one.with_blanks()
    assert re.findall(r"____(\d+)____", shown) == [str(n) for n in range(1, len(one.blanks) + 1)]
    filled = one.with_blanks({number: blank.text for number, blank in enumerate(one.blanks, 1)})
    assert filled == SNIPPETS[name].text
    first, *others = one.pieces()
    numbered = first + "".join(mark(number) + piece for number, piece in enumerate(others, 1))
    assert shown.replace("____ ", "____") == numbered.replace("____ ", "____")


def test_a_sign_and_its_value_stay_apart():
    for seed in range(50):
        shown = draw(SNIPPETS["ppo_losses"], 0.15, seed).with_blanks()
        assert not re.search(r"____\w*[A-Za-z]", shown)


@pytest.mark.parametrize("name", NAMES)
def test_a_line_does_not_give_its_blank_away(name):
    text = SNIPPETS[name].text
    lines = text.splitlines()
    for blank in all_blanks(SNIPPETS[name]):
        if not re.search("[A-Za-z]{3}", blank.text):
            continue
        number = text[: blank.start].count("\n")
        start = blank.start - (text.rfind("\n", 0, blank.start) + 1)
        rest = lines[number][:start] + " " + lines[number][start + len(blank.text) :]
        assert not re.search(rf"(?<!\w){re.escape(blank.text)}(?!\w)", rest), (blank.text, lines[number])


def test_what_cannot_be_known_is_not_asked():
    texts = {blank.text for name in NAMES for blank in all_blanks(SNIPPETS[name])}
    assert not texts & {"self", "torch", "F", "nn", '"gpt2"', "super().__init__()", '"policy_loss"', "None"}
    assert not any("Float[" in text or "Int[" in text for text in texts)


@pytest.mark.parametrize("share", [0, 0.05, 0.7, 30, float("nan")])
def test_a_share_out_of_range_is_a_sentence(share):
    with pytest.raises(LabError, match="between 0.1 and 0.6"):
        draw(SNIPPETS["rm_loss"], share, 0)


# --- answers that are right -----------------------------------------------------------------------

RIGHT = [
    ("rm_loss", "loss = -F.logsigmoid(«r_chosen - r_rejected»).mean()", ["-(r_rejected - r_chosen)", "-r_rejected + r_chosen", "torch.sub(r_chosen, r_rejected)", "input=r_chosen - r_rejected", "(r_chosen-r_rejected)*1.0"]),
    ("rm_loss", "loss = «-F.logsigmoid(r_chosen - r_rejected).mean()»", ["F.softplus(r_rejected - r_chosen).mean()", "torch.mean(-F.logsigmoid(r_chosen - r_rejected))", "-F.logsigmoid(r_chosen - r_rejected).sum() / len(r_chosen)"]),
    ("rm_loss", "accuracy = («r_chosen > r_rejected»).float().mean()", ["r_rejected < r_chosen", "r_chosen - r_rejected > 0", "torch.gt(r_chosen, r_rejected)", "~(r_chosen <= r_rejected)"]),
    ("rm_loss", "accuracy = «(r_chosen > r_rejected).float()».mean()", ["(r_chosen > r_rejected).to(torch.float32)", "torch.where(r_chosen > r_rejected, 1.0, 0.0)", "(r_rejected < r_chosen).double()"]),
    ("gather_logprobs", "next_ids = input_ids[«:, 1:»]", ["..., 1:", ":,1:None"]),
    ("gather_logprobs", "next_ids = «input_ids[:, 1:]»", ["input_ids[..., 1:]", "input_ids.narrow(1, 1, input_ids.shape[1] - 1)"]),
    ("gather_logprobs", "logprobs = F.log_softmax(«logits[:, :-1]», dim=-1)", ["logits[:, :-1, :]", "logits[..., :-1, :]", "input=logits[:, :-1]"]),
    ("gather_logprobs", "logprobs = F.log_softmax(logits[:, :-1], «dim=-1»)", ["-1", "dim = -1", "2", "dim=2"]),
    ("gather_logprobs", "logprobs = F.log_softmax(logits[:, :-1], dim=«-1»)", ["2", "1 + 1", "(-1)"]),
    ("gather_logprobs", "logprobs = «F.log_softmax(logits[:, :-1], dim=-1)»", ["logits[:, :-1].log_softmax(-1)", "torch.log_softmax(logits[:, :-1], -1)", "logits[:, :-1] - logits[:, :-1].logsumexp(-1, keepdim=True)", "torch.log_softmax(logits, dim=-1)[:, :-1]"]),
    ("gather_logprobs", "return logprobs.gather(-1, «next_ids.unsqueeze(-1)»).squeeze(-1)", ["next_ids[..., None]", "next_ids[:, :, None]", "next_ids.unsqueeze(2)", "torch.unsqueeze(next_ids, -1)", "index=next_ids[..., None]"]),
    ("gather_logprobs", "return «logprobs.gather(-1, next_ids.unsqueeze(-1))».squeeze(-1)", ["torch.gather(logprobs, 2, next_ids[..., None])"]),
    ("gather_logprobs", "return logprobs.gather(«-1», next_ids.unsqueeze(-1)).squeeze(-1)", ["2"]),
    ("shape_token_rewards", "valid = «response_mask.bool()»", ["response_mask != 0", "response_mask == 1", "response_mask > 0", "response_mask.to(torch.bool)"]),
    ("shape_token_rewards", "tokens_left = «valid.flip(-1)».cumsum(-1).flip(-1)", ["torch.flip(valid, (1,))", "valid.flip([-1])", "valid.flip(dims=(-1,))"]),
    ("shape_token_rewards", "tokens_left = valid.flip(-1).cumsum(«-1»).flip(-1)", ["dim=-1", "1", "dim=1"]),
    ("shape_token_rewards", "is_last = «valid & (tokens_left == 1)»", ["(tokens_left == 1) & valid", "valid * (tokens_left == 1)", "torch.logical_and(valid, tokens_left == 1)", "valid & (tokens_left < 2)"]),
    ("shape_token_rewards", "token_rewards = «-kl_coef * (old_logprobs - ref_logprobs)» + is_last", ["kl_coef * (ref_logprobs - old_logprobs)", "-(kl_coef * (old_logprobs - ref_logprobs))", "(old_logprobs - ref_logprobs) * -kl_coef"]),
    ("shape_token_rewards", "is_last * «rm_score.unsqueeze(-1)»", ["rm_score[:, None]", "rm_score[..., None]", "rm_score.unsqueeze(dim=1)", "rm_score.view(-1, 1)"]),
    ("shape_token_rewards", "return «token_rewards.where(valid, 0.0)»", ["token_rewards * valid", "torch.where(valid, token_rewards, 0)", "token_rewards.masked_fill(~valid, 0.0)", "valid * token_rewards"]),
    ("ppo_losses", "    ratio = «log_ratio.exp()»", ["torch.exp(log_ratio)", "torch.e ** log_ratio"]),
    ("ppo_losses", "    unclipped = «-advantages * ratio»", ["-(advantages * ratio)", "ratio * -advantages", "-ratio * advantages"]),
    ("ppo_losses", "ratio.clamp(«1 - clip_range», 1 + clip_range)", ["1.0 - clip_range", "-clip_range + 1"]),
    ("ppo_losses", "masked_mean(«torch.maximum(unclipped, clipped)», mask)", ["torch.maximum(clipped, unclipped)", "torch.max(unclipped, clipped)", "-torch.minimum(-unclipped, -clipped)"]),
    ("ppo_losses", "torch.maximum(«(new_values - returns) ** 2», ", ["(returns - new_values) ** 2", "(new_values - returns).pow(2)", "(new_values - returns).square()", "(new_values - returns) * (new_values - returns)"]),
    ("ppo_losses", "value_loss = «0.5 * masked_mean(squared_error, mask)»", ["masked_mean(squared_error, mask) / 2", "masked_mean(0.5 * squared_error, mask)", "0.5 * (squared_error * mask).sum() / mask.sum()"]),
    ("ppo_losses", "approx_kl = masked_mean(«(ratio - 1) - log_ratio», mask)", ["ratio - 1 - log_ratio", "(ratio - log_ratio) - 1", "torch.expm1(log_ratio) - log_ratio"]),
    ("ppo_losses", "clipfrac = masked_mean((«(ratio - 1).abs() > clip_range»).float()", ["(1 - ratio).abs() > clip_range", "torch.abs(ratio - 1) > clip_range", "clip_range < abs(ratio - 1)"]),
    ("ppo_losses", "with «torch.no_grad()»:", ["torch.inference_mode()"]),
    ("ppo_losses", "return «policy_loss + vf_coef * value_loss», info", ["value_loss * vf_coef + policy_loss"]),
    ("ppo_losses", "(new_logprobs - old_logprobs).where(mask.bool(), «0.0»)", ["0", "other=0.0"]),
    ("RewardModel", "rows = torch.arange(«len(input_ids)», device=input_ids.device)", ["input_ids.shape[0]", "input_ids.size(0)", "0, len(input_ids)"]),
    ("RewardModel", "rows = torch.arange(len(input_ids), «device=input_ids.device»)", ["device=hidden.device", "device=attention_mask.device"]),
    ("RewardModel", "self.v_head = nn.Linear(«self.backbone.config.hidden_size», 1", ["self.backbone.config.n_embd"]),
    ("RewardModel", "return «self.v_head(last_hidden).squeeze(-1)»", ["self.v_head(last_hidden)[:, 0]", "self.v_head(last_hidden).flatten()"]),
    ("PolicyWithValueHead", "nn.GELU(), «nn.Linear(hidden_size, 1)»", ["nn.Linear(in_features=hidden_size, out_features=1)", "torch.nn.Linear(hidden_size, 1, bias=True)"]),
    ("PolicyWithValueHead", "if «position_ids is None»:", ["position_ids == None", "not torch.is_tensor(position_ids)"]),
    ("PolicyWithValueHead", "nn.init.zeros_(self.value_head[«-1»].bias)", ["2"]),
]  # fmt: skip


@pytest.mark.parametrize("name, line, answers", RIGHT, ids=[f"{name}-{line}" for name, line, _ in RIGHT])
def test_answers_that_mean_the_same_are_right(name, line, answers, judge):
    for answer in answers:
        verdict = judge(name).judge(blank_at(name, line), answer)
        assert verdict.right, (answer, verdict.sentence)
        assert "It means the same as" in verdict.sentence or verdict.sentence == "Right."


# --- answers that are wrong -----------------------------------------------------------------------

WRONG = [
    ("rm_loss", "loss = -F.logsigmoid(«r_chosen - r_rejected»).mean()", ["r_rejected - r_chosen", "r_chosen + r_rejected", "r_chosen", "(r_chosen - r_rejected).abs()"]),
    ("rm_loss", "loss = -F.«logsigmoid»(r_chosen", ["sigmoid", "softplus", "log_softmax", "relu"]),
    ("rm_loss", "loss = «-»F.logsigmoid", ["+", "~"]),
    ("rm_loss", "loss = -F.logsigmoid(r_chosen - r_rejected).«mean»()", ["sum", "max", "median", "detach"]),
    ("rm_loss", "loss = -«F.logsigmoid(r_chosen - r_rejected)».mean()", ["torch.log(torch.sigmoid(r_chosen - r_rejected))", "F.logsigmoid(r_chosen - r_rejected).detach()", "F.logsigmoid((r_chosen - r_rejected).clamp(min=0))"]),
    ("rm_loss", "accuracy = (r_chosen «>» r_rejected)", [">=", "<", "!=", "-"]),
    ("rm_loss", "accuracy = (r_chosen > r_rejected).«float»().mean()", ["long", "bool", "half"]),
    ("rm_loss", "accuracy = (r_chosen > «r_rejected»)", ["0", "r_chosen.mean()", "loss"]),
    ("rm_loss", "return «loss, accuracy»", ["accuracy, loss", "loss", "loss, accuracy.item()", "loss.item(), accuracy"]),
    ("gather_logprobs", "next_ids = input_ids[«:, 1:»]", [":, :-1", "1:", ":, 2:", ":, 1", ":"]),
    ("gather_logprobs", "logits[:, «:-1»], dim", ["1:", ":", ":-2", "-1"]),
    ("gather_logprobs", "logprobs = F.log_softmax(logits[:, :-1], «dim=-1»)", ["dim=1", "dim=0", "dim=-2"]),
    ("gather_logprobs", "logprobs = F.«log_softmax»(", ["softmax", "logsigmoid", "gumbel_softmax"]),
    ("gather_logprobs", "logprobs.gather(-1, «next_ids.unsqueeze(-1)»)", ["next_ids", "next_ids.unsqueeze(1)", "next_ids.unsqueeze(0)", "input_ids.unsqueeze(-1)"]),
    ("gather_logprobs", "return logprobs.gather(«-1», next", ["1", "0"]),
    ("gather_logprobs", "next_ids.unsqueeze(-1)).squeeze(«-1»)", ["0", "1"]),
    ("gather_logprobs", "return «logprobs.gather(-1, next_ids.unsqueeze(-1))».squeeze(-1)", ["logprobs.gather(-1, next_ids.unsqueeze(-1)).detach()", "-logprobs.gather(-1, next_ids.unsqueeze(-1))"]),
    ("shape_token_rewards", "tokens_left = valid.flip(-1).cumsum(-1).flip(«-1»)", ["0", "-2"]),
    ("shape_token_rewards", "tokens_left = valid.flip(-1).«cumsum»(-1).flip(-1)", ["cumprod", "sum", "argsort"]),
    ("shape_token_rewards", "is_last = valid «&» (tokens_left == 1)", ["|", "^", "+"]),
    ("shape_token_rewards", "is_last = valid & (tokens_left == «1»)", ["0", "2", "-1"]),
    ("shape_token_rewards", "token_rewards = «-kl_coef» * (old_logprobs - ref_logprobs)", ["kl_coef", "-1", "-0.05", "1 - kl_coef"]),
    ("shape_token_rewards", "-kl_coef * («old_logprobs - ref_logprobs»)", ["ref_logprobs - old_logprobs", "(old_logprobs - ref_logprobs).abs()", "(old_logprobs - ref_logprobs).sum(-1, keepdim=True)", "(old_logprobs - ref_logprobs).detach()", "old_logprobs.exp() - ref_logprobs.exp()"]),
    ("shape_token_rewards", "is_last * «rm_score.unsqueeze(-1)»", ["rm_score", "rm_score.unsqueeze(0)", "rm_score.mean()", "rm_score.unsqueeze(-1) / 2"]),
    ("shape_token_rewards", "(old_logprobs - ref_logprobs) «+» is_last", ["-", "*"]),
    ("shape_token_rewards", "token_rewards.where(«valid», 0.0)", ["is_last", "~valid", "tokens_left == 1"]),
    ("shape_token_rewards", "kl_coef: float = «0.05»", ["0.5", "0.1", "0"]),
    ("ppo_losses", "old_logprobs, old_values = «old_logprobs.detach()», old", ["old_logprobs", "old_values.detach()", "new_logprobs.detach()"]),
    ("ppo_losses", "old_values = old_logprobs.detach(), «old_values.detach()»", ["old_values"]),
    ("ppo_losses", "advantages, returns = «advantages.detach()», ", ["advantages", "advantages.abs()", "-advantages.detach()"]),
    ("ppo_losses", "returns = advantages.detach(), «returns.detach()»", ["returns", "advantages.detach()"]),
    ("ppo_losses", "log_ratio = («new_logprobs - old_logprobs»).where", ["old_logprobs - new_logprobs", "new_logprobs.exp() - old_logprobs.exp()", "new_logprobs / old_logprobs", "new_logprobs"]),
    ("ppo_losses", "(new_logprobs - old_logprobs).where(«mask.bool()», 0.0)", ["~mask.bool()", "mask", "torch.ones_like(mask).bool()"]),
    ("ppo_losses", "    ratio = «log_ratio.exp()»", ["log_ratio", "1 + log_ratio", "log_ratio.exp().detach()", "(-log_ratio).exp()"]),
    ("ppo_losses", "    unclipped = «-advantages» * ratio", ["advantages", "-advantages.abs()"]),
    ("ppo_losses", "ratio.clamp(«1 - clip_range», 1 + clip_range)", ["1 + clip_range", "-clip_range", "1 - clip_range_value", "0"]),
    ("ppo_losses", "clipped = -advantages * ratio.«clamp»(1", ["where", "minimum"]),
    ("ppo_losses", "masked_mean(torch.«maximum»(unclipped, clipped), mask)", ["minimum", "add", "fmin"]),
    ("ppo_losses", "masked_mean(torch.maximum(unclipped, clipped), «mask»)", ["torch.ones_like(mask)", "1 - mask", "advantages"]),
    ("ppo_losses", "policy_loss = masked_mean(«torch.maximum(unclipped, clipped)», mask)", ["unclipped", "clipped", "torch.minimum(unclipped, clipped)"]),
    ("ppo_losses", "values_clipped = old_values + («new_values - old_values»)", ["old_values - new_values", "new_values - returns", "new_values"]),
    ("ppo_losses", ".clamp(«-clip_range_value», clip_range_value)", ["0", "1 - clip_range_value", "-clip_range"]),
    ("ppo_losses", "torch.maximum((new_values - returns) ** 2, («values_clipped - returns») ** 2)", ["values_clipped - old_values", "values_clipped", "(values_clipped - returns).detach()"]),
    ("ppo_losses", "torch.maximum((new_values - returns) «**» 2", ["*", "+"]),
    ("ppo_losses", "squared_error = torch.«maximum»(", ["minimum", "sub"]),
    ("ppo_losses", "value_loss = «0.5» * masked", ["1", "2", "0.25", "vf_coef"]),
    ("ppo_losses", "value_loss = 0.5 * «masked_mean(squared_error, mask)»", ["squared_error.mean()", "masked_mean(squared_error, 1 - mask)", "(squared_error * mask).sum()"]),
    ("ppo_losses", "approx_kl = masked_mean(«(ratio - 1) - log_ratio», mask)", ["log_ratio", "-log_ratio", "0.5 * log_ratio ** 2", "(ratio - 1) + log_ratio"]),
    ("ppo_losses", "clipfrac = masked_mean(((«ratio - 1»).abs()", ["ratio", "log_ratio", "ratio - advantages"]),
    ("ppo_losses", "clipfrac = masked_mean(((ratio - 1).abs() «>» clip_range)", [">=", "<"]),
    ("ppo_losses", "with «torch.no_grad()»:", ["torch.enable_grad()", "torch.set_grad_enabled(True)"]),
    ("ppo_losses", "return policy_loss «+» vf_coef", ["-", "*"]),
    ("ppo_losses", "return policy_loss + «vf_coef * value_loss», info", ["value_loss", "vf_coef", "-vf_coef * value_loss", "(vf_coef * value_loss).detach()"]),
    ("ppo_losses", "    clip_range: float = «0.2»", ["0.1", "2", "0"]),
    ("ppo_losses", "vf_coef: float = «0.5»", ["0.2", "1"]),
    ("RewardModel", "from_pretrained(base_model_name, «dtype=torch.float32»)", ["dtype=torch.float16", "dtype='auto'", "dtype=torch.float64"]),
    ("RewardModel", "1, «bias=False»)", ["bias=True", "True"]),
    ("RewardModel", "use_cache=«False»,", ["True"]),
    ("RewardModel", "position_ids=«position_ids_from_mask(attention_mask)»", ["None", "torch.arange(input_ids.shape[1]).expand_as(input_ids)", "attention_mask"]),
    ("RewardModel", "rows = torch.arange(len(input_ids), «device=input_ids.device»)", ["device='cpu'", "dtype=torch.long"]),
    ("RewardModel", "last_hidden = hidden[rows, «last_token_index(attention_mask)»]", ["-1", "attention_mask.sum(-1) - 1", "attention_mask.sum(-1)", "0"]),
    ("RewardModel", "last_hidden = «hidden[rows, last_token_index(attention_mask)]»", ["hidden.mean(1)", "hidden[:, -1]", "hidden[rows, last_token_index(attention_mask)].detach()"]),
    ("RewardModel", "return self.v_head(last_hidden).squeeze(«-1»)", ["0", "-2"]),
    ("RewardModel", "return «self.v_head(last_hidden).squeeze(-1)»", ["self.v_head(last_hidden)", "self.v_head(last_hidden).squeeze()", "self.v_head(last_hidden).squeeze(-1).sigmoid()"]),
    ("PolicyWithValueHead", "self.lm.generation_config = «GenerationConfig()»", ["self.lm.generation_config", "GenerationConfig(top_k=7)"]),
    ("PolicyWithValueHead", "nn.«GELU»()", ["ReLU", "Tanh"]),
    ("PolicyWithValueHead", "nn.init.«zeros_»(self.value_head[-1].bias)", ["ones_", "normal_"]),
    ("PolicyWithValueHead", "nn.init.zeros_(self.value_head[«-1»].weight)", ["0", "1"]),
    ("PolicyWithValueHead", "        self.«eval»()", ["train"]),
    ("PolicyWithValueHead", "if position_ids «is» None:", ["is not"]),
    ("PolicyWithValueHead", "values = self.value_head(«output.hidden_states[-1]»)", ["output.hidden_states[0]", "output.hidden_states[2]", "output.hidden_states[-2]", "output.hidden_states[-1].detach()", "output.logits"]),
    ("PolicyWithValueHead", "hidden_states[-1]).squeeze(«-1»)", ["0", "1"]),
    ("PolicyWithValueHead", "output_hidden_states=«True»", ["False"]),
    ("PolicyWithValueHead", "            «logits_to_keep=logits_to_keep»,", ["logits_to_keep=0", "logits_to_keep=1"]),
    ("PolicyWithValueHead", "            «position_ids=position_ids»,", ["position_ids=None", "position_ids=attention_mask"]),
    ("PolicyWithValueHead", "logits_to_keep: int = «0»", ["1"]),
    ("PolicyWithValueHead", "return «output.logits, values»", ["values, output.logits", "output.logits", "output.logits[:, :-1], values"]),
    ("PolicyWithValueHead", "        «self.lm.load_state_dict(state_dict)»", ["self.lm.load_state_dict(state_dict, strict=False)", "None"]),
]  # fmt: skip


def test_the_table_of_wrong_answers_is_large():
    assert sum(len(answers) for _, _, answers in WRONG) > 150
    assert {name for name, _, _ in WRONG} == set(NAMES)


@pytest.mark.parametrize("name, line, answers", WRONG, ids=[f"{name}-{line}" for name, line, _ in WRONG])
def test_answers_that_mean_something_else_are_wrong(name, line, answers, judge):
    for answer in answers:
        verdict = judge(name).judge(blank_at(name, line), answer)
        assert not verdict.right, answer
        assert verdict.read, (answer, verdict.sentence)
        assert verdict.sentence.endswith(".") and "\n" not in verdict.sentence


def test_the_sentence_says_in_which_way_an_answer_is_wrong(judge):
    def said(name, line, answer):
        return judge(name).judge(blank_at(name, line), answer).sentence

    logits = "logprobs = F.log_softmax(«logits[:, :-1]», dim=-1)"
    assert said("gather_logprobs", logits, "logit").startswith(
        "With it the code raises NameError: name 'logit'"
    )
    assert said("gather_logprobs", logits, "logits") == (
        "Another shape for logprobs: [3, 5, 7] instead of [3, 4, 7] (3 texts of 5 tokens)."
    )
    assert (
        said("gather_logprobs", logits, "logits[:, 1:]")
        == "Another value for logprobs (3 texts of 5 tokens)."
    )
    detached = "old_logprobs, old_values = «old_logprobs.detach()», old"
    assert "another gradient reaches old_logprobs" in said("ppo_losses", detached, "old_logprobs")
    changed = "valid = «response_mask.bool()»"
    assert "The call changes its argument response_mask" in said(
        "shape_token_rewards", changed, "response_mask.logical_not_() == 0"
    )
    assert "returns a tuple of 1" in said("rm_loss", "return «loss, accuracy»", "(loss,)")


UNREADABLE = [
    ("rm_loss", "loss = -F.logsigmoid(«r_chosen - r_rejected»)", ["r_chosen -", "r_chosen) + (r_rejected", "a; b", "r_chosen, *", "while True: pass", "import os", "a\nb", "", "#"]),
    ("rm_loss", "loss = -F.«logsigmoid»(r_chosen", ["log sigmoid", "logsigmoid()", "lambda", "1", "a.b"]),
    ("rm_loss", "accuracy = (r_chosen «>» r_rejected)", ["> 0 >", "r_chosen", ">>>", ".", ""]),
    ("gather_logprobs", "input_ids[«:, 1:»]", [":, 1:]", "0][1:", ":: :", ""]),
    ("ppo_losses", "ratio.clamp(«1 - clip_range», 1 + clip_range)", ["min=1 - clip_range", "1 - clip_range)", ""]),
]  # fmt: skip


@pytest.mark.parametrize("name, line, answers", UNREADABLE)
def test_what_does_not_fit_its_blank_is_not_judged(name, line, answers, judge):
    for answer in answers:
        verdict = judge(name).judge(blank_at(name, line), answer)
        assert not verdict.right and not verdict.read, answer
        assert verdict.sentence


def test_an_answer_that_needs_brackets_is_told_so(judge):
    verdict = judge("ppo_losses").judge(
        blank_at("ppo_losses", "    unclipped = «-advantages» * ratio"), "-advantages + 0"
    )
    assert not verdict.right and "brackets" in verdict.sentence


def test_answers_that_hang_or_end_the_program_hurt_nobody(judge, monkeypatch, capfd):
    monkeypatch.setattr(judging, "LIMIT", 2.5)
    loss = blank_at("rm_loss", "loss = «-F.logsigmoid(r_chosen - r_rejected).mean()»")
    for answer, said in [
        ("exit()", "raises SystemExit"),
        ("print(input())", "With it the code raises"),
        ("[print(1) for _ in iter(int, 1)]", "does not come to an end"),
        ("__import__('os')._exit(0)", "ends the program"),
        ("torch.set_grad_enabled(False)", "Another type for the loss"),
        ("-F.logsigmoid(r_chosen - r_rejected).mean()", "Right."),
    ]:
        verdict = judge("rm_loss").judge(loss, answer)
        assert said in verdict.sentence and verdict.right is (said == "Right.")
    monkeypatch.setattr(judging, "LIMIT", 60)
    assert judge("rm_loss").judge(loss, "F.softplus(r_rejected - r_chosen).mean()").right
    assert capfd.readouterr().out == ""


def test_solutions_that_cannot_be_run_are_a_sentence(tmp_path):
    shutil.copytree(SOLUTIONS, tmp_path / "solutions")
    path = tmp_path / "solutions" / "sft.py"
    path.write_text("import no_such_module\n" + path.read_text())
    broken = Judge(SNIPPETS["rm_loss"], tmp_path / "solutions")
    with pytest.raises(LabError, match="the solution of rm_loss cannot be run.*no_such_module"):
        broken.judge(blank_at("rm_loss", "accuracy = (r_chosen «>» r_rejected)"), ">=")


# --- hints and points -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_blank_has_three_hints_and_the_last_is_the_answer(name):
    for blank in all_blanks(SNIPPETS[name]):
        kind, parts, answer = (hint(blank, step) for step in (1, 2, 3))
        assert answer == f"It is {blank.text}."
        assert len({kind, parts, answer}) == STEPS
        if len(blank.text) > 2 and blank.text not in ("True", "False", "0.0") and blank.form != "operator":
            assert blank.text not in kind and (
                blank.text not in parts or re.fullmatch(r"[-\d.]+", blank.text)
            )
        assert all(said.startswith(("It ", "In it,")) and said.endswith(".") for said in (kind, parts))


@pytest.fixture
def game(judge):
    """A round of three blanks in rm_loss."""
    return Round(draw(SNIPPETS["rm_loss"], 0.2, 6), SOLUTIONS)


def test_points_of_a_round(game):
    assert len(game.draw.blanks) == 3 and game.of == 9
    texts = [blank.text for blank in game.draw.blanks]
    assert not game.begun
    assert game.answer(1, texts[0]).right
    assert game.points == POINTS
    game.hint(2)
    assert not game.answer(2, "((").read  # a slip costs nothing
    assert not game.answer(2, "max" if texts[1].isidentifier() else "<").right
    assert game.answer(2, texts[1]).right
    assert game.points == POINTS + 1
    said = [game.hint(3) for _ in range(3)]
    assert said[-1] == f"It is {texts[2]}."
    assert game.open == [] and game.points == POINTS + 1
    assert game.code() == SNIPPETS["rm_loss"].text
    score = game.to_score()
    assert (score["points"], score["of"], score["hints"], score["snippet"], score["seed"]) == (
        4,
        9,
        4,
        "rm_loss",
        6,
    )


def test_what_is_found_at_last_brings_a_point_and_what_was_shown_none(game):
    for _ in range(4):
        game.answer(1, "<" if game.draw.blanks[0].form == "operator" else "abs")
    game.answer(1, game.draw.blanks[0].text)
    assert game.points == 1
    assert game.give_up(2) == game.draw.blanks[1].text
    assert game.points == 1 and game.open == [3]


def test_any_is_one_of_the_six_and_the_seed_says_which(judge):
    names = {new_round(SOLUTIONS, ANY, 0.2, seed).draw.snippet.name for seed in range(40)}
    assert names == set(NAMES)
    assert new_round(SOLUTIONS, ANY, 0.2, 3).title == new_round(SOLUTIONS, ANY, 0.2, 3).title
    assert len({new_round(SOLUTIONS, "rm_loss", 0.2, None).draw.seed for _ in range(20)}) > 10
    with pytest.raises(LabError, match="there is no snippet 'compute_gae'"):
        new_round(SOLUTIONS, "compute_gae", 0.2, 1)
    with pytest.raises(LabError, match="must not be negative"):
        new_round(SOLUTIONS, ANY, 0.2, -1)


# --- scores ---------------------------------------------------------------------------------------

ENTRY = {"time": "2026-01-02T03:04:05Z", "snippet": "rm_loss", "seed": 7, "share": 0.2, "points": 6, "of": 9, "seconds": 40, "hints": 1}  # fmt: skip


def test_scores_of_two_processes_are_all_kept(tmp_path):
    program = (
        "import json, sys; from pathlib import Path; from rlhf_lab.cloze.scores import Scores\n"
        "for seed in range(15): Scores(Path(sys.argv[1])).add(json.loads(sys.argv[2]) | {'seed': seed})"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "rlhf_exercises"), json.dumps(ENTRY)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: subprocess.run(command, check=True, cwd=CHECKOUT), range(2)))
    rounds = Scores(tmp_path / "rlhf_exercises").rounds()
    assert sorted(entry["seed"] for entry in rounds) == sorted(2 * list(range(15)))


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1}', b"\xff\xfe"])
def test_a_damaged_score_file_is_kept_aside(tmp_path, content):
    scores = Scores(tmp_path / "rlhf_exercises")
    scores.path.parent.mkdir()
    scores.path.write_bytes(content)
    assert scores.rounds() == []
    assert "cloze.json was damaged: it is kept as cloze.json.old-1" in scores.add(ENTRY)
    assert scores.rounds() == [ENTRY]
    assert (scores.path.parent / "cloze.json.old-1").read_bytes() == content
    assert scores.add(ENTRY) == "" and len(scores.rounds()) == 2


def test_entries_that_are_none_are_passed_over_and_kept(tmp_path):
    scores = Scores(tmp_path / "rlhf_exercises")
    scores.path.parent.mkdir()
    strange = [ENTRY, 3, {"points": 1}, ENTRY | {"of": 0}, ENTRY | {"points": "6"}]
    scores.path.write_text(json.dumps(strange))
    scores.add(ENTRY)
    assert scores.rounds() == [ENTRY, ENTRY]
    assert json.loads(scores.path.read_text()) == [*strange, ENTRY]


def test_scores_that_cannot_be_written_are_a_sentence(tmp_path):
    (tmp_path / "runs").write_text("a file where the folder should be")
    assert "the score is not kept" in Scores(tmp_path / "rlhf_exercises").add(ENTRY)


def test_the_table_of_scores(tmp_path):
    assert to_table([]) == "No round has been played yet."
    rounds = [
        ENTRY | {"points": points, "seed": points} for points in [1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9, 9]
    ]
    table = to_table(rounds).splitlines()
    assert "2026-01-02 03:04" in table[-2] and "9 / 9" in table[-2] and table[-2].endswith("########## 100 %")
    assert table[1] == "... 1 earlier rounds"
    assert table[-1] == "13 rounds. The first 5 rounds: 33 % of the points. The last 5: 100 %."
    assert to_table([ENTRY]).endswith("the trend begins with the second one.")
    assert "The first round: 67 % of the points. The last one: 67 %." in to_table([ENTRY, ENTRY])


# --- in a terminal --------------------------------------------------------------------------------


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course folder; the working directory is in it."""
    shutil.copytree(STUBS, tmp_path / "rlhf_exercises", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "solutions").symlink_to(SOLUTIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    for name in [name for name in sys.modules if name.split(".")[0] == "rlhf_exercises"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(lab, "_session", None)
    return tmp_path


@pytest.fixture
def typed(monkeypatch):
    """Lets a player type these lines; an exception is raised in its place, and after the last line the input ends."""

    def answers(*lines):
        waiting = iter(lines)

        def read(prompt=""):
            line = next(waiting, EOFError)
            if not isinstance(line, str):
                raise line
            return line

        monkeypatch.setattr("builtins.input", read)

    return answers


def a_round(course, seed=6):
    play(SOLUTIONS, Scores(course / "rlhf_exercises"), "rm_loss", 0.2, seed)


def test_a_round_in_the_terminal(course, typed, capsys, game):
    first, second, third = (blank.text for blank in game.draw.blanks)
    typed(first, "?", "((", "nothing_of_this_name", "nor_this", "")
    a_round(course)
    out = capsys.readouterr().out
    assert textwrap.indent(game.draw.with_blanks(), "    ") in out
    assert "--snippet rm_loss --seed 6 --share 0.2" in out
    assert "    Right.\n" in out and hint(game.draw.blanks[1], 1) in out
    assert f"    It is {second}.\n" in out and f"Skipped. It is {third}." in out
    assert "rm_loss · seed 6 · share 20%: 1 of 3 blanks, 3 of 9 points." in out
    (entry,) = Scores(course / "rlhf_exercises").rounds()
    assert (entry["points"], entry["of"], entry["hints"]) == (3, 9, 1)


@pytest.mark.parametrize("end", ["q", EOFError, KeyboardInterrupt])
def test_a_round_that_is_ended_keeps_what_was_answered(course, typed, capsys, game, end):
    typed(game.draw.blanks[0].text, end)
    a_round(course)
    out = capsys.readouterr().out
    assert f"3   It is {game.draw.blanks[2].text}." in out and "1 of 3 blanks, 3 of 9 points" in out
    assert len(Scores(course / "rlhf_exercises").rounds()) == 1


def test_a_round_without_an_answer_is_not_kept(course, typed, capsys):
    typed()
    a_round(course)
    assert "nothing is kept" in capsys.readouterr().out
    assert Scores(course / "rlhf_exercises").rounds() == []


def test_without_a_seed_it_draws_again(course, typed, capsys):
    typed(*[""] * 3, "", "q")
    play(SOLUTIONS, Scores(course / "rlhf_exercises"), "gather_logprobs", 0.2, None)
    seeds = re.findall(r"gather_logprobs · seed (\d+) · share 20%\n", capsys.readouterr().out)
    assert 1 <= len(seeds) <= 2


def test_the_command(course, capsys):
    command = [
        sys.executable,
        "-m",
        "rlhf_lab",
        "cloze",
        "--snippet",
        "rm_loss",
        "--seed",
        "6",
        "--share",
        "0.2",
    ]
    texts = [blank.text for blank in draw(SNIPPETS["rm_loss"], 0.2, 6).blanks]
    done = subprocess.run(command, input="\n".join(texts), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "3 of 3 blanks, 9 of 9 points" in done.stdout and done.stderr == ""
    assert main(["cloze", "--scores"]) == 0
    assert "9 / 9" in capsys.readouterr().out


def test_the_command_where_it_cannot_play(course, capsys):
    assert main(["cloze", "--share", "0.9"]) == 1
    assert main(["cloze", "--snippet", "gae"]) == 1
    said = capsys.readouterr().err
    assert "between 0.1 and 0.6" in said and "there is no snippet 'gae'" in said
    (course / "solutions").unlink()
    assert main(["cloze"]) == 1
    assert "the solutions are not in this course folder" in capsys.readouterr().err


# --- in a notebook --------------------------------------------------------------------------------


@pytest.fixture
def drill(course):
    return Drill(SOLUTIONS, Scores(course / "rlhf_exercises"), "rm_loss", 0.2, 6)


def on_the_page(widget) -> str:
    """Everything that the page has been sent about a widget and what is in it."""
    state = {key: value for key, value in widget.get_state().items() if key != "children"}
    return str(state) + "".join(map(on_the_page, getattr(widget, "children", ())))


def press_enter(row, text):
    row.field.value = text
    row.field._handle_msg(
        {"content": {"data": {"method": "custom", "content": {"event": "submit"}}}, "buffers": []}
    )


def test_a_round_in_the_widget(drill):
    first, second, third = (blank.text for blank in drill.round.draw.blanks)
    one, two, three = drill.lines
    press_enter(one, "nothing_of_this_name")
    assert "\u2717" in one.said.value and "raises" in one.said.value
    press_enter(one, "nothing_of_this_name")  # the same again is not judged again
    press_enter(one, first)
    assert "\u2713" in one.said.value and one.field.disabled
    press_enter(two, "?")
    assert hint(drill.round.draw.blanks[1], 1) in two.said.value and two.field.value == ""
    two.button.click()
    two.field.value, three.field.value = second, third
    drill.check.click()
    assert drill.round.open == [] and drill.check.disabled
    assert "3 of 3 blanks, 6 of 9 points." in drill.score.value
    (entry,) = Scores(drill._scores.path.parent.parent / "rlhf_exercises").rounds()
    assert (entry["points"], entry["hints"]) == (6, 2)


def test_the_page_has_no_answer_before_it_is_asked_for(course):
    for seed in range(10):
        drill = Drill(SOLUTIONS, Scores(course / "rlhf_exercises"), "gather_logprobs", 0.3, seed)
        page = on_the_page(drill)
        visible = drill.round.draw.with_blanks()
        for row, blank in zip(drill.lines, drill.round.draw.blanks, strict=True):
            if blank.text not in visible:
                assert f">{blank.text}<" not in page and f"'{blank.text}'" not in page
        drill.show.click()
        assert all(
            blank.text in row.said.value.replace("&gt;", ">")
            for row, blank in zip(drill.lines, drill.round.draw.blanks, strict=True)
        )
    assert len(Scores(course / "rlhf_exercises").rounds()) == 10


def test_a_new_draw_keeps_what_was_begun(drill):
    before, old = drill.round.draw, drill.lines
    drill.new.click()
    assert drill._scores.rounds() == []  # nothing was tried
    drill.hint(drill.lines[0])
    drill.snippet.value, drill.share.value = "gather_logprobs", 30
    drill.new.click()
    assert [entry["hints"] for entry in drill._scores.rounds()] == [1]
    assert drill.round.draw.snippet.name == "gather_logprobs" and drill.round.draw.share == 0.3
    assert drill.round.draw != before and len(drill.rows.children) == len(drill.round.draw.blanks)
    assert all(row.field.comm is None for row in old)


def test_a_reader_without_widgets_gets_text(drill):
    bundle = drill._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["text/plain"] == f"{drill.round.title}\n\n{drill.round.draw.with_blanks()}"
    cell = nbformat.v4.new_code_cell(outputs=[nbformat.v4.new_output("display_data", data=bundle)])
    page = without_widgets(nbformat.v4.new_notebook(cells=[cell], metadata={"widgets": {}}))
    assert dict(page.cells[0].outputs[0].data) == {"text/plain": bundle["text/plain"]}
    assert "widgets" not in page.metadata and len(cell.outputs[0].data) == 2


def test_the_notebook_calls(course, capsys):
    InteractiveShell.instance()
    try:
        lab.cloze()
        assert "run the first code cell" in capsys.readouterr().out
        lab.begin("09_cloze", "rlhf_exercises")
        for _ in range(2):
            Scores(course / "rlhf_exercises").add(ENTRY)
        with capture_output() as shown:
            lab.cloze("rm_loss", share=0.2, seed=6)
            lab.cloze_scores()
            lab.cloze(share=3)
        assert "rm_loss · seed 6" in shown.outputs[0].data["text/plain"]
        assert "image/png" in shown.outputs[1].data
        assert "2 rounds." in shown.stdout and "between 0.1 and 0.6" in shown.stdout
        (course / "solutions").unlink()
        lab.cloze()
        assert "the solutions are not in this course folder" in capsys.readouterr().out
    finally:
        InteractiveShell.clear_instance()
