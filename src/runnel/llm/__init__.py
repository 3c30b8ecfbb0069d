"""Language models: tokenizer, engine, tasks, rewards, sampler, learner and algorithms."""
