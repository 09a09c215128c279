"""Wrong and correct implementations of the exercises in `dpo.py`."""

from . import body, right, wrong

# --- 5.1 sequence_logprobs ------------------------------------------------------------------------

GATHER = "token_logprobs = gather_logprobs(logits, input_ids)"
RESPONSE = "is_response = labels[:, 1:] != IGNORE"
SUM = "return token_logprobs.where(is_response, 0.0).sum(dim=-1)"
ATTENTION = "        attention_mask=attention_mask,\n"
POSITIONS = "        position_ids=position_ids_from_mask(attention_mask),\n"
TO_PROBABILITY = (
    "You take the softmax and its logarithm in two steps: where a token is next to impossible the softmax is rounded to 0. "
    "Which function takes both steps in one?"
)

EOS_LEFT_OUT = (
    "The EOS that ends a response is left out of your sum: you take every EOS for padding, or -100 for a 0 and then every "
    "0 for -100."
)
NO_GRADIENT = (
    "Your sum carries no gradient: the model runs under no_grad, or something is detached. The reference may be read like "
    "that; the policy is to be trained."
)


def _tokens(expression: str) -> tuple[str, str]:
    """Another way from logits to the log-probability of each token; `at` are the places, `next_ids` the tokens."""
    return (
        GATHER,
        "next_ids = input_ids[:, 1:].unsqueeze(-1)\n    token_logprobs = " + expression,
    )


wrong(
    "sequence_logprobs",
    "You take the mean over the response; the docstring asks for the sum. A long response has a smaller probability than "
    "a short one, and the loss is about probabilities.",
    (SUM, "return token_logprobs.where(is_response, 0.0).sum(dim=-1) / is_response.sum(dim=-1).clamp(min=1)"),
)
wrong(
    "sequence_logprobs",
    "You divide the sum by the length of the row.",
    (SUM, "return token_logprobs.where(is_response, 0.0).mean(dim=-1)"),
)
wrong(
    "sequence_logprobs",
    "You divide the sum by the number of real tokens, those of the prompt too.",
    (SUM, SUM + " / attention_mask.sum(dim=-1)"),
)
wrong(
    "sequence_logprobs",
    "You divide by the square root of the length; the docstring asks for the sum.",
    (SUM, SUM + " / is_response.sum(dim=-1).clamp(min=1).sqrt()"),
)
wrong(
    "sequence_logprobs",
    "Labels and log-probabilities are one place apart: the log-probabilities have lost the first token and the labels the "
    "last one.",
    (RESPONSE, "is_response = labels[:, :-1] != IGNORE"),
)
wrong(
    "sequence_logprobs",
    "Nothing is shifted: the logits at a position are about the next token, not about the one that stands there.",
    (GATHER, "token_logprobs = logits.log_softmax(-1).gather(-1, input_ids.unsqueeze(-1)).squeeze(-1)"),
    (RESPONSE, "is_response = labels != IGNORE"),
)
wrong(
    "sequence_logprobs",
    "You shift the wrong way: you read the logits behind a token, which are about the token after the next.",
    (
        GATHER,
        "token_logprobs = logits[:, 1:].log_softmax(-1).gather(-1, input_ids[:, :-1].unsqueeze(-1)).squeeze(-1)",
    ),
    (RESPONSE, "is_response = labels[:, :-1] != IGNORE"),
)
wrong(
    "sequence_logprobs",
    "The labels are shifted twice: your sum begins and ends one token too early.",
    (RESPONSE, "is_response = labels[:, 1:].roll(-1, dims=1) != IGNORE"),
)
wrong(
    "sequence_logprobs",
    "You add up raw logits: the log-softmax is missing.",
    _tokens("logits[:, :-1].gather(-1, next_ids).squeeze(-1)"),
)
wrong(
    "sequence_logprobs",
    "You add up probabilities: the logarithm is missing.",
    _tokens("logits[:, :-1].softmax(-1).gather(-1, next_ids).squeeze(-1)"),
)
wrong(
    "sequence_logprobs",
    TO_PROBABILITY,
    _tokens("logits[:, :-1].softmax(-1).gather(-1, next_ids).squeeze(-1).log()"),
)
wrong(
    "sequence_logprobs",
    "You add a small number inside the logarithm: unlikely tokens are cut off.",
    _tokens("(logits[:, :-1].softmax(-1).gather(-1, next_ids).squeeze(-1) + 1e-8).log()"),
)
wrong(
    "sequence_logprobs",
    "You clamp the log-probabilities: next to impossible tokens are cut off.",
    (GATHER, GATHER + ".clamp(min=-100)"),
)
wrong(
    "sequence_logprobs",
    "You take the softmax over the positions; it belongs over the vocabulary.",
    _tokens("logits[:, :-1].log_softmax(1).gather(-1, next_ids).squeeze(-1)"),
)
wrong(
    "sequence_logprobs",
    "You add up the log-probability of the likeliest token, not of the one that is there.",
    _tokens("logits[:, :-1].log_softmax(-1).amax(-1)"),
)
wrong(
    "sequence_logprobs",
    "You look up -100 as if it were a token: counted from the end it is one, and it is added up.",
    _tokens(
        "logits[:, :-1].log_softmax(-1).gather(-1, (labels[:, 1:] % logits.shape[-1]).unsqueeze(-1)).squeeze(-1)"
    ),
    (SUM, "return token_logprobs.sum(dim=-1)"),
)
wrong(
    "sequence_logprobs",
    "You set -100 to 0 to look it up, and then add these places up too.",
    _tokens(
        "logits[:, :-1].log_softmax(-1).gather(-1, labels[:, 1:].clamp(min=0).unsqueeze(-1)).squeeze(-1)"
    ),
    (SUM, "return token_logprobs.sum(dim=-1)"),
)
wrong(
    "sequence_logprobs",
    EOS_LEFT_OUT,
    (RESPONSE, "is_response = labels[:, 1:].clamp(min=0) != 0"),
)
wrong(
    "sequence_logprobs",
    "Your sum holds the prompt and the padding too: the labels are not looked at.",
    (SUM, "return token_logprobs.sum(dim=-1)"),
)
wrong(
    "sequence_logprobs",
    "Your sum holds the prompt: the attention mask says what is real, the labels say what is response.",
    (RESPONSE, "is_response = attention_mask[:, 1:] != 0"),
)
wrong(
    "sequence_logprobs",
    "You count everything behind the first label: padding is in your sum.",
    (RESPONSE, "is_response = (labels[:, 1:] != IGNORE).long().cumsum(dim=-1) > 0"),
)
wrong(
    "sequence_logprobs",
    "You count every real token behind the first label; a later one may have no label.",
    (
        RESPONSE,
        "is_response = ((labels[:, 1:] != IGNORE).long().cumsum(dim=-1) > 0) & (attention_mask[:, 1:] != 0)",
    ),
)
wrong(
    "sequence_logprobs",
    "The last token of each response is left out of your sum; its EOS is a choice of the policy like any other.",
    (
        RESPONSE,
        "is_response = labels[:, 1:] != IGNORE\n"
        "    is_response = is_response & torch.cat([is_response[:, 1:], is_response[:, :1] & False], dim=1)",
    ),
)
wrong(
    "sequence_logprobs",
    EOS_LEFT_OUT,
    (RESPONSE, "is_response = (labels[:, 1:] != IGNORE) & (input_ids[:, 1:] != 0)"),
)
wrong(
    "sequence_logprobs",
    "You let the response begin behind the first EOS where there is one: an EOS may stand inside a prompt.",
    (
        RESPONSE,
        (
            "is_eos = (input_ids[:, 1:] == 0).long()\n"
            "    is_response = (labels[:, 1:] != IGNORE) & (is_eos.cumsum(dim=-1) - is_eos == 0)"
        ),
    ),
)
wrong(
    "sequence_logprobs",
    "The first token of each response is left out of your sum: the last token of the prompt predicts it.",
    (RESPONSE, "is_response = (labels[:, 1:] != IGNORE) & (labels[:, :-1] != IGNORE)"),
)
wrong(
    "sequence_logprobs",
    "The model is not told which token has which position: a text that is padded on the left is read as if it began in the "
    "middle.",
    (POSITIONS, ""),
)
wrong(
    "sequence_logprobs",
    "Your positions begin at 1: the first token has position 0.",
    ("position_ids_from_mask(attention_mask)", "attention_mask.long().cumsum(dim=-1)"),
)
wrong(
    "sequence_logprobs",
    "You hand over positions only where all rows are padded on the left; one row is enough to need them.",
    (
        "position_ids_from_mask(attention_mask)",
        "position_ids_from_mask(attention_mask) if (attention_mask[:, 0] == 0).all() else None",
    ),
)
wrong(
    "sequence_logprobs",
    "The attention mask does not reach the model: with padding on the left the text sees the padding before it.",
    (ATTENTION, ""),
)
wrong(
    "sequence_logprobs",
    "Neither attention mask nor positions reach the model: only padding on the right is read correctly.",
    (ATTENTION + POSITIONS, ""),
)
wrong(
    "sequence_logprobs",
    "You build the mask for the model from ids (`!= pad`): where pad is EOS, an EOS inside the text is not read.",
    (ATTENTION, "        attention_mask=(input_ids != 0).long(),\n"),
)
wrong(
    "sequence_logprobs",
    "The model is hidden the prompt: you hand it the labels' mask in place of the attention mask.",
    (ATTENTION, "        attention_mask=(labels != IGNORE).long(),\n"),
)
wrong(
    "sequence_logprobs",
    NO_GRADIENT,
    ("    logits = model(", "    with torch.no_grad():\n      logits = model("),
)
wrong(
    "sequence_logprobs",
    NO_GRADIENT,
    (SUM, SUM + ".detach()"),
)
wrong(
    "sequence_logprobs",
    "The logarithm of the normaliser is detached: the gradient pushes a token up without pushing the others down.",
    _tokens("logits[:, :-1].gather(-1, next_ids).squeeze(-1) - logits[:, :-1].logsumexp(-1).detach()"),
)
wrong(
    "sequence_logprobs",
    "You return one number for the whole batch.",
    (SUM, "return token_logprobs.where(is_response, 0.0).sum()"),
)
wrong(
    "sequence_logprobs",
    "You return the mean over the batch.",
    (SUM, SUM + ".mean()"),
)
wrong(
    "sequence_logprobs",
    "You return one number a token; the docstring asks for their sum.",
    (SUM, "return token_logprobs.where(is_response, 0.0)"),
)
wrong(
    "sequence_logprobs",
    "You add up along the batch; the sum goes along the tokens of a text.",
    (SUM, "return token_logprobs.where(is_response, 0.0).sum(dim=0)"),
)
wrong(
    "sequence_logprobs",
    "`x[mask]` throws all rows together: there is one sum a text.",
    (SUM, "return token_logprobs[is_response].sum().expand(len(input_ids))"),
)
wrong(
    "sequence_logprobs",
    "The sign is wrong: you return the loss, minus the log-probability.",
    (SUM, SUM.replace("return ", "return -")),
)
wrong(
    "sequence_logprobs",
    "You return a probability (the exp of the sum); it is rounded to 0 for any long text.",
    (SUM, SUM + ".exp()"),
)
wrong(
    "sequence_logprobs",
    "Your sum is [batch, 1]; the docstring asks for [batch].",
    (SUM, SUM.replace("dim=-1", "dim=-1, keepdim=True")),
)
wrong(
    "sequence_logprobs",
    "You squeeze the sum, and a batch of one text loses its only dimension.",
    (SUM, SUM + ".squeeze()"),
)
wrong(
    "sequence_logprobs",
    "You replace -100 in the caller's labels: the next model to read this batch takes the prompt for a response.",
    (RESPONSE, RESPONSE + "\n    labels[labels == IGNORE] = 0"),
)
wrong(
    "sequence_logprobs",
    "You write into the attention mask that you are handed.",
    (RESPONSE, RESPONSE + "\n    attention_mask[labels == IGNORE] = 0"),
)
wrong(
    "sequence_logprobs",
    "A row without a label ends in NaN: a sum over nothing is 0.",
    (
        SUM,
        (
            "total = token_logprobs.where(is_response, 0.0).sum(dim=-1)\n"
            "    return total * is_response.sum(dim=-1) / is_response.sum(dim=-1)"
        ),
    ),
)
wrong(
    "sequence_logprobs",
    "The log-probabilities are divided by ln 2: they are bits, and the docstring asks for nats.",
    (SUM, SUM + " / torch.tensor(2.0).log()"),
)
wrong(
    "sequence_logprobs",
    "You sharpen the logits with a temperature; they are to be read as they are.",
    (GATHER, GATHER.replace("logits,", "logits / 0.7,")),
)
right(
    "sequence_logprobs",
    "log_softmax and gather of clamped labels, times the mask (as the paper's own code does)",
    body("""
    logits = model(input_ids, attention_mask=attention_mask, position_ids=position_ids_from_mask(attention_mask)).logits
    targets = labels[:, 1:].clone()
    loss_mask = targets != IGNORE
    targets[~loss_mask] = 0
    per_token = torch.gather(logits[:, :-1].log_softmax(-1), dim=2, index=targets.unsqueeze(2)).squeeze(2)
    return (per_token * loss_mask).sum(-1)
    """),
)
right(
    "sequence_logprobs",
    "cross-entropy with ignore_index, the sign turned",
    body("""
    positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(input_ids=input_ids, attention_mask=attention_mask, position_ids=positions, use_cache=False).logits
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], ignore_index=IGNORE, reduction="none")
    return -losses.sum(dim=1)
    """),
)
right(
    "sequence_logprobs",
    "text by text, token by token, without padding",
    body("""
    sums = []
    for ids, mask, label in zip(input_ids, attention_mask.bool(), labels):
        text, its_labels = ids[mask], label[mask]
        logprobs = model(input_ids=text[None]).logits[0].log_softmax(-1)
        tokens = [logprobs[t - 1, text[t]] for t in range(1, len(text)) if its_labels[t] != IGNORE]
        sums.append(torch.stack(tokens).sum() if tokens else logprobs.sum() * 0)
    return torch.stack(sums)
    """),
)
right(
    "sequence_logprobs",
    "in float64, with einsum, positions of the padding 1 (as transformers generates)",
    body("""
    positions = (attention_mask.long().cumsum(-1) - 1).masked_fill(attention_mask == 0, 1)
    logits = model(input_ids=input_ids, attention_mask=attention_mask, position_ids=positions).logits.double()
    chosen = logits[:, :-1].gather(-1, input_ids[:, 1:, None]).squeeze(-1) - logits[:, :-1].logsumexp(-1)
    return torch.einsum("bt,bt->b", chosen, (labels[:, 1:] != -100).double())
    """),
)
right(
    "sequence_logprobs",
    "eval mode set inside, masked_fill",
    body("""
    model.eval()
    outputs = model(
        input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids_from_mask(attention_mask)
    )
    logprobs = F.log_softmax(outputs["logits"], dim=-1)
    picked = logprobs[:, :-1, :].gather(2, input_ids[:, 1:].unsqueeze(2))[..., 0]
    return picked.masked_fill(labels[:, 1:] == IGNORE, 0).sum(1)
    """),
)

# --- 5.2 dpo_loss ---------------------------------------------------------------------------------

CHOSEN = "chosen_reward = beta * (policy_chosen - ref_chosen.detach())"
REJECTED = "rejected_reward = beta * (policy_rejected - ref_rejected.detach())"
LOSS = "loss = -F.logsigmoid(chosen_reward - rejected_reward).mean()"
RETURN = "return loss, chosen_reward.detach(), rejected_reward.detach()"
MARGIN = "chosen_reward - rejected_reward"
REFERENCE_SIGN = (
    "The reference has the wrong sign: it is added where it has to be subtracted, or its two log-probabilities have changed "
    "places."
)
NOTHING_TO_LEARN = "Nothing can be learnt: the loss, or the rewards that it is made of, are detached."
TWO_STEPS = (
    "You take the logarithm and the sigmoid (or the exp) in two steps: far behind, the sigmoid is rounded to 0 or the exp "
    "is infinite. Which function takes both steps in one?"
)

wrong(
    "dpo_loss",
    "Chosen and rejected have changed places in the loss: it falls when the rejected response becomes likelier.",
    (LOSS, LOSS.replace(MARGIN, "rejected_reward - chosen_reward")),
)
wrong(
    "dpo_loss",
    "The sign of the loss is wrong: it is negative, and falls when the chosen response gets less likely.",
    (LOSS, LOSS.replace("-F.", "F.")),
)
wrong(
    "dpo_loss",
    "You limit beta to 1. It may have any value.",
    ("chosen_reward = beta", "beta = min(beta, 1.0)\n    chosen_reward = beta"),
)
wrong(
    "dpo_loss",
    "The reference is missing: the loss compares the policy's own log-probabilities, and is not ln 2 at the start.",
    (LOSS, LOSS.replace(MARGIN, "beta * (policy_chosen - policy_rejected)")),
)
wrong(
    "dpo_loss",
    REFERENCE_SIGN,
    (LOSS, LOSS.replace(MARGIN, "beta * (policy_chosen + ref_chosen - policy_rejected - ref_rejected)")),
)
wrong(
    "dpo_loss",
    REFERENCE_SIGN,
    (LOSS, LOSS.replace(MARGIN, "beta * (policy_chosen - ref_rejected - policy_rejected + ref_chosen)")),
)
wrong(
    "dpo_loss",
    "Policy and reference have changed places: the loss falls when the policy moves away from the chosen response.",
    (CHOSEN, "chosen_reward = beta * (ref_chosen.detach() - policy_chosen)"),
    (REJECTED, "rejected_reward = beta * (ref_rejected.detach() - policy_rejected)"),
)
wrong(
    "dpo_loss",
    "The reference of the rejected response is missing.",
    (LOSS, LOSS.replace(MARGIN, "chosen_reward - beta * policy_rejected")),
)
wrong(
    "dpo_loss",
    "The loss looks at the chosen response alone; it is a comparison of two.",
    (LOSS, LOSS.replace(MARGIN, "chosen_reward")),
)
wrong(
    "dpo_loss",
    "Each response has a sigmoid of its own: only the difference of the two rewards is to have one.",
    (LOSS, "loss = -(F.logsigmoid(chosen_reward) + F.logsigmoid(-rejected_reward)).mean()"),
)
wrong(
    "dpo_loss",
    "Your loss is half the sum of two sigmoids' losses, one a response (as KTO has it): DPO has one sigmoid, of the "
    "difference.",
    (LOSS, "loss = -0.5 * (F.logsigmoid(chosen_reward) + F.logsigmoid(-rejected_reward)).mean()"),
)
wrong(
    "dpo_loss",
    "beta is missing inside the sigmoid.",
    (LOSS, LOSS.replace(MARGIN, "(chosen_reward - rejected_reward) / beta")),
)
wrong(
    "dpo_loss",
    "beta stands in front of the loss; it belongs inside the sigmoid.",
    (LOSS, "loss = -beta * F.logsigmoid((chosen_reward - rejected_reward) / beta).mean()"),
)
wrong(
    "dpo_loss",
    "A number stands where `beta` belongs.",
    (CHOSEN, CHOSEN.replace("beta *", "0.1 *")),
    (REJECTED, REJECTED.replace("beta *", "0.1 *")),
)
wrong(
    "dpo_loss",
    "beta scales the policy alone; it scales the difference to the reference.",
    (CHOSEN, "chosen_reward = beta * policy_chosen - ref_chosen.detach()"),
    (REJECTED, "rejected_reward = beta * policy_rejected - ref_rejected.detach()"),
)
wrong(
    "dpo_loss",
    "You divide by beta where you have to multiply.",
    (CHOSEN, "chosen_reward = (policy_chosen - ref_chosen.detach()) / beta"),
    (REJECTED, "rejected_reward = (policy_rejected - ref_rejected.detach()) / beta"),
)
wrong(
    "dpo_loss",
    "beta is applied twice.",
    (LOSS, LOSS.replace(MARGIN, "beta * (chosen_reward - rejected_reward)")),
)
wrong("dpo_loss", TWO_STEPS, (LOSS, "loss = -torch.sigmoid(chosen_reward - rejected_reward).log().mean()"))
wrong(
    "dpo_loss", TWO_STEPS, (LOSS, "loss = torch.log(1 + torch.exp(rejected_reward - chosen_reward)).mean()")
)
wrong(
    "dpo_loss",
    "You add a small number inside the logarithm: a loss of more than about 18 is cut off.",
    (LOSS, "loss = -(torch.sigmoid(chosen_reward - rejected_reward) + 1e-8).log().mean()"),
)
wrong(
    "dpo_loss",
    "You clamp the difference: far behind, the loss no longer grows and its gradient is 0.",
    (LOSS, LOSS.replace(MARGIN, "(chosen_reward - rejected_reward).clamp(-20, 20)")),
)
wrong(
    "dpo_loss",
    "Your loss is a hinge, max(0, 1 - difference); the docstring asks for -log sigmoid.",
    (LOSS, "loss = F.relu(1 - (chosen_reward - rejected_reward)).mean()"),
)
wrong(
    "dpo_loss",
    "Your loss is a squared distance (that of IPO); the docstring asks for -log sigmoid.",
    (LOSS, "loss = (((chosen_reward - rejected_reward) / beta - 1 / (2 * beta)) ** 2).mean()"),
)
wrong(
    "dpo_loss",
    "Your loss is 1 - sigmoid: the logarithm is missing.",
    (LOSS, "loss = (1 - torch.sigmoid(chosen_reward - rejected_reward)).mean()"),
)
wrong(
    "dpo_loss",
    "Your loss is minus the difference of the rewards: the sigmoid is missing, and the loss falls without end.",
    (LOSS, "loss = -(chosen_reward - rejected_reward).mean()"),
)
wrong(
    "dpo_loss",
    "You take ratios of log-probabilities; the logarithm of a ratio is a difference.",
    (CHOSEN, "chosen_reward = beta * (policy_chosen / ref_chosen.detach())"),
    (REJECTED, "rejected_reward = beta * (policy_rejected / ref_rejected.detach())"),
)
wrong(
    "dpo_loss",
    "You take the ratios of the probabilities themselves (an exp too many); the reward is their logarithm.",
    (CHOSEN, "chosen_reward = beta * (policy_chosen - ref_chosen.detach()).exp()"),
    (REJECTED, "rejected_reward = beta * (policy_rejected - ref_rejected.detach()).exp()"),
)
wrong(
    "dpo_loss",
    "The loss carries a margin that the chosen response has to be ahead by; the docstring's formula has none.",
    (LOSS, LOSS.replace(MARGIN, "chosen_reward - rejected_reward - 0.5")),
)
wrong(
    "dpo_loss",
    "You smooth the labels: a share of each pair counts the other way round.",
    (
        LOSS,
        (
            "loss = -(0.9 * F.logsigmoid(chosen_reward - rejected_reward) "
            "+ 0.1 * F.logsigmoid(rejected_reward - chosen_reward)).mean()"
        ),
    ),
)
wrong(
    "dpo_loss",
    "The loss is the sum over the pairs, not their mean.",
    (LOSS, LOSS.replace("mean", "sum")),
)
wrong(
    "dpo_loss",
    "You average the differences before the logarithm; each pair has its own loss.",
    (LOSS, "loss = -F.logsigmoid((chosen_reward - rejected_reward).mean())"),
)
wrong(
    "dpo_loss",
    "Each chosen response is compared with every rejected one: `[batch, 1] - [batch]` is a square.",
    (LOSS, LOSS.replace(MARGIN, "chosen_reward.unsqueeze(1) - rejected_reward")),
)
wrong(
    "dpo_loss",
    "The loss is in bits (log 2); the docstring's log is the natural one.",
    (LOSS, LOSS + " / torch.tensor(2.0).log()"),
)
wrong(
    "dpo_loss",
    "You return one loss a pair; the docstring asks for their mean.",
    (LOSS, LOSS.removesuffix(".mean()")),
)
wrong(
    "dpo_loss",
    "You return the loss alone; the docstring asks for the loss and two rewards.",
    (RETURN, "return loss"),
)
wrong(
    "dpo_loss",
    "The two rewards are returned in the wrong order.",
    (RETURN, "return loss, rejected_reward.detach(), chosen_reward.detach()"),
)
wrong(
    "dpo_loss",
    "The rewards are not scaled by beta.",
    (RETURN, "return loss, chosen_reward.detach() / beta, rejected_reward.detach() / beta"),
)
wrong(
    "dpo_loss",
    "You return the policy's log-probabilities as rewards; a reward says how much more the policy gives than the reference.",
    (RETURN, "return loss, policy_chosen.detach(), policy_rejected.detach()"),
)
wrong(
    "dpo_loss",
    "You return beta times the policy's log-probabilities as rewards; the reference is missing in them.",
    (RETURN, "return loss, beta * policy_chosen.detach(), beta * policy_rejected.detach()"),
)
wrong(
    "dpo_loss",
    "You return the mean reward of the batch; the docstring asks for one reward a response.",
    (RETURN, "return loss, chosen_reward.detach().mean(), rejected_reward.detach().mean()"),
)
wrong(
    "dpo_loss",
    "The rewards carry a gradient: they keep the memory of the whole step when they are stored.",
    (RETURN, "return loss, chosen_reward, rejected_reward"),
)
wrong(
    "dpo_loss",
    "The reward of the rejected response carries a gradient.",
    (RETURN, "return loss, chosen_reward.detach(), rejected_reward"),
)
wrong(
    "dpo_loss",
    NOTHING_TO_LEARN,
    (CHOSEN, CHOSEN.replace("policy_chosen", "policy_chosen.detach()")),
    (REJECTED, REJECTED.replace("policy_rejected", "policy_rejected.detach()")),
)
wrong(
    "dpo_loss",
    "The rejected response is detached: only the chosen one is pushed.",
    (REJECTED, REJECTED.replace("policy_rejected", "policy_rejected.detach()")),
)
wrong(
    "dpo_loss",
    "The chosen response is detached: only the rejected one is pushed.",
    (CHOSEN, CHOSEN.replace("policy_chosen", "policy_chosen.detach()")),
)
wrong(
    "dpo_loss",
    NOTHING_TO_LEARN,
    (LOSS, LOSS + ".detach()"),
)
wrong(
    "dpo_loss",
    "The gradient reaches the reference's log-probabilities: a reference that is not frozen would be trained away from "
    "the policy.",
    (CHOSEN, CHOSEN.replace(".detach()", "")),
    (REJECTED, REJECTED.replace(".detach()", "")),
)
wrong(
    "dpo_loss",
    "You subtract in place (`-=`, `sub_`): the caller's log-probabilities change.",
    (
        CHOSEN,
        (
            "chosen_reward = beta * (policy_chosen - ref_chosen.detach() if policy_chosen.requires_grad "
            "else policy_chosen.sub_(ref_chosen))"
        ),
    ),
)
wrong(
    "dpo_loss",
    "You multiply the caller's reference by beta in place.",
    (REJECTED, REJECTED + "\n    ref_rejected.data.mul_(beta)"),
)
right(
    "dpo_loss",
    "the ratios of the policy and of the reference, softplus, beta last",
    body("""
    pi_logratios = policy_chosen - policy_rejected
    ref_logratios = (ref_chosen - ref_rejected).detach()
    logits = pi_logratios - ref_logratios
    losses = F.softplus(-beta * logits)
    with torch.no_grad():
        rewards = beta * (policy_chosen - ref_chosen), beta * (policy_rejected - ref_rejected)
    return losses.mean(), *rewards
    """),
)
right(
    "dpo_loss",
    "cross-entropy over the two rewards, in float64; a list",
    body("""
    policy = torch.stack([policy_chosen, policy_rejected], dim=1).double()
    reference = torch.stack([ref_chosen, ref_rejected], dim=1).double().detach()
    rewards = beta * (policy - reference)
    loss = F.cross_entropy(rewards, torch.zeros(len(rewards), dtype=torch.long))
    return [loss, rewards[:, 0].detach(), rewards[:, 1].detach()]
    """),
)
right(
    "dpo_loss",
    "binary cross-entropy with logits; the reference frozen with no_grad",
    body("""
    with torch.no_grad():
        ref_chosen, ref_rejected = ref_chosen.clone(), ref_rejected.clone()
    margin = beta * ((policy_chosen - ref_chosen) - (policy_rejected - ref_rejected))
    loss = F.binary_cross_entropy_with_logits(margin, torch.ones_like(margin))
    return loss, beta * (policy_chosen - ref_chosen).detach(), beta * (policy_rejected - ref_rejected).detach()
    """),
)
right(
    "dpo_loss",
    "pair by pair",
    body("""
    losses, chosen, rejected = [], [], []
    for pc, pr, rc, rr in zip(policy_chosen, policy_rejected, ref_chosen.detach(), ref_rejected.detach()):
        chosen.append(beta * (pc - rc))
        rejected.append(beta * (pr - rr))
        losses.append(torch.logaddexp(torch.zeros(()), rejected[-1] - chosen[-1]))
    return sum(losses) / len(losses), torch.stack(chosen).detach(), torch.stack(rejected).detach()
    """),
)

# --- 5.3 train_dpo --------------------------------------------------------------------------------

OPTIM = "optim = torch.optim.AdamW(policy.parameters(), lr=lr)"
CLIP = "            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)\n"
ZERO = "            optim.zero_grad()\n"
BACKWARD = "            loss.backward()\n"
STEP = "            optim.step()\n"
TO_DEVICE = "            batch = {name: tensor.to(device) for name, tensor in batch.items()}\n"
LOOP = "    history = []\n    for _ in range(n_epochs):\n"
POLICY_EVAL = "policy.to(device).eval()  #"
REFERENCE_EVAL = "    ref_policy.to(device).eval()\n"
CHOSEN_BATCH = 'chosen = batch["chosen_ids"], batch["chosen_mask"], batch["chosen_labels"]'
REJECTED_BATCH = 'rejected = batch["rejected_ids"], batch["rejected_mask"], batch["rejected_labels"]'
READ_REFERENCE = "ref_chosen = sequence_logprobs(ref_policy, *chosen)"
READ_REFERENCE_2 = "ref_rejected = sequence_logprobs(ref_policy, *rejected)"
CALL = "policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta\n"
ACCURACY = '"accuracy": (chosen_reward > rejected_reward).float().mean().item()'
MARGIN_ENTRY = '"margin": (chosen_reward - rejected_reward).mean().item()'
CHOSEN_ENTRY = '"chosen_logprob": policy_chosen.mean().item()'
REJECTED_ENTRY = '"rejected_logprob": policy_rejected.mean().item()'
LOSS_ENTRY = '"loss": loss.item()'
NOTHING_TO_GO_BY = "No gradient reaches the step: there is no backward, or the gradients are set to zero between backward and step."
UPHILL = "Each step makes the loss larger: you call backward on minus the loss, or `maximize=True` turns the optimiser round."
NOT_CLIPPED = "The gradient that reaches the step is not clipped: clipping is not there, or comes after the step, or before backward."
ITSELF = (
    "The policy itself, or a fresh copy of it, is asked for the reference's log-probabilities: all rewards are 0 and the "
    "loss is ln 2 for ever."
)
ONE_SIDED = (
    "The rejected response gets no gradient: it is detached, or stands where the reference's number belongs. Only the "
    "chosen one is pushed."
)
TRAINING_MODE = "The policy is in training mode: its dropout makes it differ from itself."
FOLLOWS = "The reference follows the policy: it is made equal to it again in the loop, and the loss never leaves ln 2."

# which model reads what
wrong(
    "train_dpo",
    ITSELF,
    (READ_REFERENCE, READ_REFERENCE.replace("ref_policy", "policy")),
    (READ_REFERENCE_2, READ_REFERENCE_2.replace("ref_policy", "policy")),
)
wrong(
    "train_dpo",
    "The policy itself is asked for the reference's log-probability of the rejected response.",
    (READ_REFERENCE_2, READ_REFERENCE_2.replace("ref_policy", "policy")),
)
wrong(
    "train_dpo",
    FOLLOWS,
    (STEP, STEP + "            ref_policy.load_state_dict(policy.state_dict())\n"),
)
wrong(
    "train_dpo",
    ITSELF,
    (
        "        for batch in dataloader:\n",
        "        for batch in dataloader:\n            ref_policy = __import__('copy').deepcopy(policy)\n",
    ),
)
wrong(
    "train_dpo",
    "The reference is made equal to the policy at each epoch; it has to stay where SFT left it.",
    (
        "        for batch in dataloader:\n",
        "        ref_policy.load_state_dict(policy.state_dict())\n        for batch in dataloader:\n",
    ),
)
wrong(
    "train_dpo",
    "The reference follows the policy slowly (a running average of its weights); it has to stay where SFT left it.",
    (
        STEP,
        STEP
        + "            with torch.no_grad():\n"
        + "                for old, new in zip(ref_policy.parameters(), policy.parameters()):\n"
        + "                    old.lerp_(new, 0.1)\n",
    ),
)
wrong(
    "train_dpo",
    "The reference is trained in place of the policy: the two have changed places.",
    (
        POLICY_EVAL,
        "policy, ref_policy = ref_policy.requires_grad_(True), policy\n    policy.to(device).eval()  #",
    ),
)
wrong(
    "train_dpo",
    "The optimiser holds the weights of the reference too.",
    (OPTIM, "optim = torch.optim.AdamW([*policy.parameters(), *ref_policy.parameters()], lr=lr)"),
)
wrong(
    "train_dpo",
    "Policy and reference have changed places in the loss: it has no gradient for the policy.",
    (CALL, "ref_chosen, ref_rejected, policy_chosen, policy_rejected, beta\n"),
)
wrong(
    "train_dpo",
    "Chosen and rejected have changed places: the policy learns to write what people did not prefer.",
    (CALL, "policy_rejected, policy_chosen, ref_rejected, ref_chosen, beta\n"),
)
wrong(
    "train_dpo",
    ONE_SIDED,
    (CALL, "policy_chosen, ref_chosen, policy_rejected, ref_rejected, beta\n"),
)
wrong(
    "train_dpo",
    "The reference's two log-probabilities have changed places.",
    (CALL, "policy_chosen, policy_rejected, ref_rejected, ref_chosen, beta\n"),
)
wrong(
    "train_dpo",
    "`beta` is not handed on: the loss is that of its default.",
    (CALL, "policy_chosen, policy_rejected, ref_chosen, ref_rejected\n"),
)
wrong(
    "train_dpo",
    "A number stands where `beta` belongs.",
    (CALL, "policy_chosen, policy_rejected, ref_chosen, ref_rejected, 0.3\n"),
)
wrong(
    "train_dpo",
    "The rejected texts are read with the chosen mask.",
    (REJECTED_BATCH, REJECTED_BATCH.replace("rejected_mask", "chosen_mask")),
)
wrong(
    "train_dpo",
    "The rejected texts are read with the labels of the chosen ones.",
    (REJECTED_BATCH, REJECTED_BATCH.replace("rejected_labels", "chosen_labels")),
)
wrong(
    "train_dpo",
    "Chosen and rejected log-probabilities both come from the chosen texts: the loss is ln 2 for ever.",
    (REJECTED_BATCH, "rejected = chosen"),
)
wrong(
    "train_dpo",
    "The ids stand where the labels belong: the prompt and the padding are counted too.",
    (CHOSEN_BATCH, CHOSEN_BATCH.replace("chosen_labels", "chosen_ids")),
    (REJECTED_BATCH, REJECTED_BATCH.replace("rejected_labels", "rejected_ids")),
)
wrong(
    "train_dpo",
    "The mask does not reach the models.",
    (CHOSEN_BATCH, CHOSEN_BATCH.replace('batch["chosen_mask"]', 'torch.ones_like(batch["chosen_mask"])')),
    (
        REJECTED_BATCH,
        REJECTED_BATCH.replace('batch["rejected_mask"]', 'torch.ones_like(batch["rejected_mask"])'),
    ),
)
wrong(
    "train_dpo",
    ONE_SIDED,
    (CALL, "policy_chosen, policy_rejected.detach(), ref_chosen, ref_rejected, beta\n"),
)
wrong(
    "train_dpo",
    "The chosen response is read without a gradient: only the rejected one is pushed.",
    (CALL, "policy_chosen.detach(), policy_rejected, ref_chosen, ref_rejected, beta\n"),
)

# dropout
wrong(
    "train_dpo",
    TRAINING_MODE,
    (POLICY_EVAL, "policy.to(device).train()  #"),
)
wrong(
    "train_dpo",
    "You leave the policy in the mode that it comes in: in training mode its dropout makes it differ from itself.",
    (POLICY_EVAL, "policy.to(device)  #"),
)
wrong(
    "train_dpo",
    TRAINING_MODE,
    ("        for batch in dataloader:\n", "        policy.train()\n        for batch in dataloader:\n"),
)
wrong(
    "train_dpo",
    "You leave the reference in the mode that it comes in: with dropout it says something else each time.",
    (REFERENCE_EVAL, "    ref_policy.to(device)\n"),
)

# the loop
wrong(
    "train_dpo",
    "Gradients are never set to zero: each step moves along the sum of all gradients so far.",
    (ZERO, ""),
)
wrong(
    "train_dpo",
    "Gradients are set to zero once an epoch: within it they add up.",
    (ZERO, ""),
    ("        for batch in dataloader:\n", "        optim.zero_grad()\n        for batch in dataloader:\n"),
)
wrong("train_dpo", NOTHING_TO_GO_BY, (ZERO, ""), (CLIP, CLIP + ZERO))
wrong("train_dpo", NOTHING_TO_GO_BY, (BACKWARD, ""))
wrong("train_dpo", "The optimiser never steps.", (STEP, ""))
wrong("train_dpo", NOT_CLIPPED, (CLIP, ""))
wrong("train_dpo", NOT_CLIPPED, (CLIP, ""), (STEP, STEP + CLIP))
wrong("train_dpo", NOT_CLIPPED, (CLIP, ""), (BACKWARD, CLIP + BACKWARD))
wrong(
    "train_dpo",
    "You clip the reference's gradient, which has none; the policy's is to be clipped.",
    ("clip_grad_norm_(policy.", "clip_grad_norm_(ref_policy."),
)
wrong(
    "train_dpo",
    "You clip each entry of the gradient (`clip_grad_value_`), not its norm.",
    ("clip_grad_norm_(policy.parameters(), 1.0)", "clip_grad_value_(policy.parameters(), 1.0)"),
)
wrong(
    "train_dpo",
    "You clip to another norm than 1.0.",
    ("clip_grad_norm_(policy.parameters(), 1.0)", "clip_grad_norm_(policy.parameters(), 0.5)"),
)
wrong(
    "train_dpo",
    "You make a new optimiser in each epoch, and AdamW forgets its running averages.",
    (OPTIM, "policy = policy"),
    (LOOP, LOOP + f"        {OPTIM}\n"),
)
wrong(
    "train_dpo",
    "You make a new optimiser for each batch, and AdamW forgets its running averages.",
    (OPTIM, "policy = policy"),
    (TO_DEVICE, TO_DEVICE + f"            {OPTIM}\n"),
)
wrong(
    "train_dpo",
    "Your optimiser is SGD; the docstring asks for AdamW.",
    ("torch.optim.AdamW(", "torch.optim.SGD("),
)
wrong(
    "train_dpo",
    "Your optimiser is Adam; the docstring asks for AdamW.",
    ("torch.optim.AdamW(", "torch.optim.Adam("),
)
wrong(
    "train_dpo",
    "Your optimiser is RMSprop, which the paper's own code uses; the docstring asks for AdamW.",
    ("torch.optim.AdamW(", "torch.optim.RMSprop("),
)
wrong(
    "train_dpo",
    "`lr` is not handed on: AdamW steps with its own default.",
    (OPTIM, "optim = torch.optim.AdamW(policy.parameters())"),
)
wrong("train_dpo", "A number stands where `lr` belongs.", (OPTIM, OPTIM.replace("lr=lr", "lr=1e-5")))
wrong(
    "train_dpo",
    "The optimiser holds a part of the policy's weights only.",
    (OPTIM, OPTIM.replace("policy.parameters()", "list(policy.parameters())[1:]")),
)
wrong(
    "train_dpo",
    "You change the learning rate after each epoch; nobody asked for a schedule.",
    (
        "        for batch in dataloader:\n",
        "        optim.param_groups[0]['lr'] *= 0.5 if history else 1\n        for batch in dataloader:\n",
    ),
)
wrong("train_dpo", "You train one epoch, whatever `n_epochs` says.", ("range(n_epochs)", "range(1)"))
wrong("train_dpo", "You train one epoch too many.", ("range(n_epochs)", "range(n_epochs + 1)"))
wrong(
    "train_dpo",
    "You train two epochs at most, whatever `n_epochs` says.",
    ("range(n_epochs)", "range(min(n_epochs, 2))"),
)
wrong(
    "train_dpo",
    "You stop at the first batch of each epoch.",
    (
        "item(),\n                }\n            )\n",
        "item(),\n                }\n            )\n            break\n",
    ),
)
wrong(
    "train_dpo",
    "The optimiser steps once an epoch, with the gradient of the last batch.",
    (STEP, ""),
    (
        "item(),\n                }\n            )\n",
        "item(),\n                }\n            )\n        optim.step()\n",
    ),
)
wrong(
    "train_dpo",
    "You append one dictionary an epoch; the docstring asks for one a step.",
    ("    return history", "    return history[len(dataloader) - 1 :: len(dataloader)]"),
)
wrong("train_dpo", UPHILL, (BACKWARD, "            (-loss).backward()\n"))
wrong("train_dpo", UPHILL, (OPTIM, OPTIM.replace("lr=lr", "lr=lr, maximize=True")))
wrong(
    "train_dpo",
    "From the second epoch on the sign of the gradient is wrong: what the first has learnt is unlearnt.",
    ("for _ in range", "for epoch in range"),
    (BACKWARD, "            (loss if epoch == 0 else -loss).backward()\n"),
)
wrong(
    "train_dpo",
    "You clip in the first epoch only.",
    ("for _ in range", "for epoch in range"),
    (CLIP, "            if epoch == 0:\n    " + CLIP),
)
wrong(
    "train_dpo",
    "From the second epoch on you train on the first batch alone.",
    ("for _ in range", "for epoch in range"),
    (TO_DEVICE, "            batch = batch if epoch == 0 else next(iter(dataloader))\n" + TO_DEVICE),
)
wrong(
    "train_dpo",
    "The loss is multiplied by the number of pairs: a sum, not a mean.",
    (BACKWARD, "            loss = loss * len(chosen_reward)\n" + BACKWARD),
)
wrong(
    "train_dpo",
    "The loss is divided by the number of batches, as if gradients were gathered over all of them.",
    (BACKWARD, "            (loss / len(dataloader)).backward()\n"),
)
wrong(
    "train_dpo",
    "The likelihood of the chosen response is in the loss as well, as in SFT: nobody asked for that.",
    (BACKWARD, "            (loss - 0.1 * policy_chosen.mean()).backward()\n"),
)
wrong(
    "train_dpo",
    "You train a copy; the policy that you are handed stays as it was.",
    (POLICY_EVAL, "policy = __import__('copy').deepcopy(policy)\n    policy.to(device).eval()  #"),
)
wrong(
    "train_dpo",
    "You make a list of the batches before the first epoch: a loader that shuffles then has one order for ever.",
    (LOOP, "    dataloader = list(dataloader)\n" + LOOP),
)
wrong(
    "train_dpo",
    "You ask the data loader for batches by number; it can only be gone through.",
    ("for batch in dataloader:", "for i in range(len(dataloader)):"),
    (TO_DEVICE, TO_DEVICE.replace("batch.items()", "dataloader[i].items()")),
)

# the device
wrong(
    "train_dpo",
    "The batch stays where it was: on a GPU the models and their input are on two devices.",
    (TO_DEVICE, ""),
)
wrong(
    "train_dpo",
    "The policy stays where it was: on a GPU it and its input are on two devices.",
    (POLICY_EVAL, "policy.eval()  #"),
)
wrong(
    "train_dpo",
    "The reference stays where it was: on a GPU it and its input are on two devices.",
    (REFERENCE_EVAL, "    ref_policy.eval()\n"),
)

# the history
wrong(
    "train_dpo",
    "You count a tie as correct; the chosen response has to have strictly the higher reward.",
    (ACCURACY, ACCURACY.replace(">", ">=")),
)
wrong(
    "train_dpo",
    "Your accuracy counts the pairs in which the rejected response has the higher reward.",
    (ACCURACY, ACCURACY.replace(">", "<")),
)
wrong(
    "train_dpo",
    "Your accuracy compares the policy's log-probabilities; it is the implicit rewards that are compared, and they hold "
    "the reference too.",
    (ACCURACY, '"accuracy": (policy_chosen > policy_rejected).float().mean().item()'),
)
wrong(
    "train_dpo",
    "Your accuracy counts the chosen responses with a reward above 0; it is the rejected one that they have to beat.",
    (ACCURACY, '"accuracy": (chosen_reward > 0).float().mean().item()'),
)
wrong(
    "train_dpo",
    "Your accuracy is a number of pairs, not a share.",
    (ACCURACY, ACCURACY.replace("mean", "sum")),
)
wrong(
    "train_dpo",
    "Your accuracy is the mean probability, sigmoid of the difference, not the share of right pairs.",
    (ACCURACY, '"accuracy": torch.sigmoid(chosen_reward - rejected_reward).mean().item()'),
)
wrong(
    "train_dpo",
    "Your margin is a difference of log-probabilities: the reference is missing.",
    (MARGIN_ENTRY, '"margin": (policy_chosen - policy_rejected).mean().item()'),
)
wrong(
    "train_dpo",
    "Your margin has the wrong sign: rejected minus chosen.",
    (
        MARGIN_ENTRY,
        MARGIN_ENTRY.replace("chosen_reward - rejected_reward", "rejected_reward - chosen_reward"),
    ),
)
wrong(
    "train_dpo",
    "Your margin is not scaled by beta: it is the difference of log-ratios, not of rewards.",
    (MARGIN_ENTRY, MARGIN_ENTRY.replace(".item()", ".item() / beta")),
)
wrong(
    "train_dpo",
    "Your margin is scaled by beta twice.",
    (MARGIN_ENTRY, MARGIN_ENTRY.replace(".item()", ".item() * beta")),
)
wrong(
    "train_dpo",
    "Your margin is a sum over the batch, not a mean.",
    (MARGIN_ENTRY, MARGIN_ENTRY.replace("mean", "sum")),
)
wrong(
    "train_dpo",
    "You take the absolute value of each pair's difference: a margin may be negative.",
    (MARGIN_ENTRY, MARGIN_ENTRY.replace(".mean()", ".abs().mean()")),
)
wrong(
    "train_dpo",
    "`chosen_logprob` is that of the reference.",
    (CHOSEN_ENTRY, CHOSEN_ENTRY.replace("policy_chosen", "ref_chosen")),
)
wrong(
    "train_dpo",
    "`chosen_logprob` and `rejected_logprob` are rewards, not log-probabilities.",
    (CHOSEN_ENTRY, CHOSEN_ENTRY.replace("policy_chosen", "chosen_reward")),
    (REJECTED_ENTRY, REJECTED_ENTRY.replace("policy_rejected", "rejected_reward")),
)
wrong(
    "train_dpo",
    "`chosen_logprob` and `rejected_logprob` have changed places.",
    (CHOSEN_ENTRY, CHOSEN_ENTRY.replace("policy_chosen", "policy_rejected")),
    (REJECTED_ENTRY, REJECTED_ENTRY.replace("policy_rejected", "policy_chosen")),
)
wrong(
    "train_dpo",
    "`chosen_logprob` is a sum over the batch, not a mean.",
    (CHOSEN_ENTRY, CHOSEN_ENTRY.replace("mean", "sum")),
)
wrong(
    "train_dpo",
    "Your dictionaries hold tensors; the docstring asks for floats.",
    (LOSS_ENTRY, '"loss": loss.detach()'),
    (MARGIN_ENTRY, MARGIN_ENTRY.replace(".item()", "")),
)
wrong(
    "train_dpo",
    "The loss is stored with its graph, which keeps the memory of every step.",
    (LOSS_ENTRY, '"loss": loss'),
)
wrong(
    "train_dpo",
    "`chosen_logprob` is stored with its graph, which keeps the memory of every step.",
    (CHOSEN_ENTRY, CHOSEN_ENTRY.replace(".item()", "")),
)
wrong(
    "train_dpo",
    "The dictionaries have no 'margin'.",
    (f"                    {MARGIN_ENTRY},\n", ""),
)
wrong(
    "train_dpo",
    "You return the losses alone; the docstring asks for dictionaries.",
    ("    return history", '    return [step["loss"] for step in history]'),
)
wrong(
    "train_dpo",
    "You return the policy; the docstring asks for the history. The policy is trained in place.",
    ("    return history", "    return policy"),
)
wrong("train_dpo", "You return nothing.", ("    return history", "    return None"))
wrong(
    "train_dpo",
    "Your history holds running means over all steps so far, not the numbers of each step.",
    (
        "    return history",
        (
            "    return [\n"
            "        {name: sum(step[name] for step in history[: i + 1]) / (i + 1) for name in history[i]}\n"
            "        for i in range(len(history))\n"
            "    ]"
        ),
    ),
)
wrong(
    "train_dpo",
    "The log-probabilities in your history are those after the step, not those that were trained on.",
    (
        STEP,
        STEP
        + "            with torch.no_grad():\n"
        + "                policy_chosen = sequence_logprobs(policy, *chosen)\n"
        + "                policy_rejected = sequence_logprobs(policy, *rejected).clone()\n",
    ),
)
wrong(
    "train_dpo",
    "From the second epoch on the losses that you return are 0.",
    ("for _ in range", "for epoch in range"),
    (LOSS_ENTRY, '"loss": loss.item() if epoch == 0 else 0.0'),
)
wrong(
    "train_dpo",
    "You write into the labels of the batch, and the next epoch reads what you wrote.",
    (
        REJECTED_BATCH,
        REJECTED_BATCH + '\n            batch["rejected_labels"][:, -1] = batch["rejected_ids"][:, -1]',
    ),
)
wrong(
    "train_dpo",
    "You squeeze the rewards: a batch of one pair has none left to compare.",
    (
        ACCURACY,
        '"accuracy": sum(m > 0 for m in (chosen_reward - rejected_reward).squeeze().tolist()) / len(chosen_reward)',
    ),
)
right(
    "train_dpo",
    "chosen and rejected in one pass, keyword arguments, the model's zero_grad",
    body("""
    policy = policy.to(device)
    ref_policy = ref_policy.to(device)
    optimizer = torch.optim.AdamW(params=policy.parameters(), lr=lr, weight_decay=0.0)
    history = []
    for epoch in range(n_epochs):
        policy.eval()
        ref_policy.eval()
        for batch in dataloader:
            both = [
                torch.cat([batch[f"chosen_{name}"], batch[f"rejected_{name}"]]).to(device)
                for name in ("ids", "mask", "labels")
            ]
            with torch.no_grad():
                ref_chosen, ref_rejected = sequence_logprobs(ref_policy, *both).chunk(2)
            chosen, rejected = sequence_logprobs(policy, *both).chunk(2)
            loss, r_chosen, r_rejected = dpo_loss(chosen, rejected, ref_chosen, ref_rejected, beta=beta)
            policy.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_([p for p in policy.parameters()], max_norm=1)
            optimizer.step()
            margins = (r_chosen - r_rejected).tolist()
            history.append(
                dict(
                    loss=float(loss.detach()),
                    accuracy=sum(m > 0 for m in margins) / len(margins),
                    margin=sum(margins) / len(margins),
                    chosen_logprob=float(chosen.detach().mean()),
                    rejected_logprob=float(rejected.detach().mean()),
                )
            )
    return history
    """),
)
right(
    "train_dpo",
    "the reference read with gradient: the loss detaches it, and the reference is frozen",
    (
        "            with torch.no_grad():\n                ref_chosen",
        "            if True:\n                ref_chosen",
    ),
)
right(
    "train_dpo",
    "the loss spelt out, zero_grad after the step, more than asked for in the history",
    body("""
    for model in (policy, ref_policy):
        model.to(device)
        model.eval()
    optim = torch.optim.AdamW(policy.parameters(), lr=lr)
    history = []
    for batch in [batch for _ in range(n_epochs) for batch in dataloader]:
        batch = {k: v.to(device) for k, v in batch.items()}
        logprobs = {}
        for name, model in (("policy", policy), ("ref", ref_policy)):
            for side in ("rejected", "chosen"):
                with torch.set_grad_enabled(name == "policy"):
                    logprobs[name, side] = sequence_logprobs(
                        model, batch[f"{side}_ids"], batch[f"{side}_mask"], batch[f"{side}_labels"]
                    )
        rewards = {side: beta * (logprobs["policy", side] - logprobs["ref", side]) for side in ("chosen", "rejected")}
        margin = rewards["chosen"] - rewards["rejected"]
        loss = F.softplus(-margin).mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optim.step()
        optim.zero_grad()
        history.append(
            {
                "step": len(history),
                "loss": loss.item(),
                "accuracy": (margin > 0).double().mean().item(),
                "margin": margin.mean().item(),
                "chosen_logprob": logprobs["policy", "chosen"].mean().item(),
                "rejected_logprob": logprobs["policy", "rejected"].mean().item(),
                "norm": norm.item(),
            }
        )
    return history
    """),
)
right(
    "train_dpo",
    "parameters of the reference switched off by hand, the policy left in training mode afterwards",
    (
        REFERENCE_EVAL,
        REFERENCE_EVAL + "    for weight in ref_policy.parameters():\n        weight.requires_grad_(False)\n",
    ),
    ("    return history", "    policy.train()\n    return history"),
)
right(
    "train_dpo",
    "ten times the weight decay, gradients filled with zeros",
    (OPTIM, OPTIM.replace("lr=lr", "lr=lr, weight_decay=0.1")),
    (ZERO, "            optim.zero_grad(set_to_none=False)\n"),
)
