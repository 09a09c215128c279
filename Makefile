# Each target is one command that works without make too, on Windows as well (see README.md).
#   PYTHON=...  the Python (3.11 or newer) that builds .venv       ARGS=...  further arguments of the command

ifeq ($(OS),Windows_NT)
PYTHON ?= python
VENV_PYTHON := .venv/Scripts/python.exe
else
PYTHON ?= python3
VENV_PYTHON := .venv/bin/python
endif

.PHONY: help setup demo test lab bench check status generate check-generated grade-demo

help:
	@echo "make demo    train SFT, reward model and PPO on the tiny model; score card, pictures, HTML report"
	@echo "make test    run the tests"
	@echo "make lab     open JupyterLab at the first notebook"
	@echo "make check   run the checks of all exercises on your code (one: make check ARGS=compute_gae)"
	@echo "make status  all exercises with points and state"
	@echo "make bench   measure speed and memory of a PPO step"
	@echo "make setup   build .venv; the others do it first when it is missing or out of date"
	@echo "make grade-demo  for instructors: a class of twelve from release to report"
	@echo "Arguments are passed on: make demo ARGS='--seed 1'"
	@echo "For authors: make generate writes rlhf_exercises/ and notebooks/ from solutions/; make check-generated compares"

setup:
	@$(PYTHON) -m rlhf_lab setup

demo test lab bench check status: setup
	@$(VENV_PYTHON) -m rlhf_lab $@ $(ARGS)

generate check-generated grade-demo: setup
	@$(VENV_PYTHON) -m authoring $@ $(ARGS)
