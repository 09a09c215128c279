"""A program as tutorials wrote them for the old library: respond, score, step. Only the import lines name ours.

    python old_style.py POLICY_FOLDER LOG_DIR [CLASSIFIER_FOLDER]

Without a classifier, or where it cannot be loaded, the score is a stand-in.
"""

import json
import sys

import torch
from transformers import AutoTokenizer, pipeline

from solutions.trainer import AutoModelForCausalLMWithValueHead, PPOConfig, PPOTrainer

folder, log_dir = sys.argv[1:3]
config = PPOConfig(
    model_name=folder,
    learning_rate=5e-5,
    batch_size=4,
    mini_batch_size=2,
    gradient_accumulation_steps=1,
    ppo_epochs=3,
    init_kl_coef=0.1,
    adap_kl_ctrl=True,
    kl_penalty="kl",
    target_kl=0.2,
    log_with="tensorboard",
    log_dir=log_dir,
    seed=1,
)
model = AutoModelForCausalLMWithValueHead.from_pretrained(config.model_name)
ref_model = AutoModelForCausalLMWithValueHead.from_pretrained(config.model_name)
tokenizer = AutoTokenizer.from_pretrained(config.model_name)
if tokenizer.pad_token is None:
    tokenizer.pad_token = tokenizer.eos_token

try:
    classifier = pipeline("sentiment-analysis", model=sys.argv[3], device=model.device)

    def score(texts):
        found = classifier(texts, top_k=None)
        by_label = [{entry["label"]: entry["score"] for entry in entries} for entries in found]
        return [torch.tensor(entry["POSITIVE"]) for entry in by_label]

    reward = "classifier"
except (IndexError, OSError):

    def score(texts):
        return [torch.tensor(text.count("e") / 10) for text in texts]

    reward = "stand-in"

trainer = PPOTrainer(config=config, model=model, ref_model=ref_model, tokenizer=tokenizer)
settings = {"min_length": -1, "top_k": 0.0, "top_p": 1.0, "do_sample": True, "max_new_tokens": 12}
settings["pad_token_id"] = tokenizer.pad_token_id
asked = ["This phone", "The soup in that place", "My new keyboard", "关于这家餐厅："]
queries = [tokenizer.encode(text, return_tensors="pt").to(model.device) for text in asked]

history = []
for _ in range(3):
    responses = [trainer.generate(query.squeeze(0), **settings).squeeze() for query in queries]
    texts = [tokenizer.decode(response, skip_special_tokens=True) for response in responses]
    scores = score(texts)
    stats = trainer.step(queries, responses, scores)
    trainer.log_stats(stats, {"query": asked, "response": texts}, scores)
    history.append({"mean score": torch.stack(scores).mean().item(), "stats": stats})

print(json.dumps({"reward": reward, "history": history}))
