"""A taskset of verifiers: continue a story; the reward is the share of its words that are short."""

from collections.abc import Iterable

import verifiers.v1 as vf

PROMPTS = ("Once upon a time", "One day, a dog", "The sun was")


class StoryTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def short_words(self, trace: vf.Trace) -> float:
        words = (trace.assistant_messages[-1].content or "").split()
        return sum(len(word) < 5 for word in words) / max(len(words), 1)


class StoryTaskset(vf.Taskset[StoryTask, vf.TasksetConfig]):
    def load(self) -> Iterable[StoryTask]:
        for prompt in PROMPTS:
            yield StoryTask(vf.TaskData(prompt=prompt), self.config.task)


__all__ = ["StoryTaskset"]
