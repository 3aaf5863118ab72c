#!/usr/bin/env python3
"""Tests of the server with clients that people use: openai and langchain-openai.

    cargo build --release && tools/test_clients.sh

The server runs the model of `models/recall`, dense and with `priority`. VATTENTION is the path of
the command, if it is elsewhere.
"""

import asyncio
import threading
import time
import unittest

import openai

from serving.needles import Needle
from serving.server import Server, recall_options, start_with_key

KEY = "the-key-of-the-test"
DENSE, SPARSE = "recall@dense", "recall@priority"
# Long enough that `priority` samples: it reads shorter prompts whole.
CASES = [Needle(seed, sentences=400) for seed in range(16)]


def setUpModule() -> None:
    global server, client
    server = start_with_key(KEY)
    unittest.addModuleCleanup(server.stop)
    client = openai.OpenAI(base_url=f"{server.address}/v1", api_key=KEY, max_retries=0)
    unittest.addModuleCleanup(client.close)


def ask(needle: Needle) -> list[dict]:
    return [{"role": "user", "content": needle.prompt}]


class OpenAi(unittest.TestCase):
    def test_models(self) -> None:
        found = [model.id for model in client.models.list()]
        self.assertEqual(set(found), {"recall", DENSE, SPARSE})
        self.assertEqual(client.models.retrieve(SPARSE).id, SPARSE)

    def test_chat(self) -> None:
        for model in [DENSE, SPARSE]:
            answer = client.chat.completions.create(
                model=model, messages=ask(CASES[0]), temperature=0, max_completion_tokens=8
            )
            choice = answer.choices[0]
            self.assertEqual(choice.message.role, "assistant")
            self.assertIn(CASES[0].number, choice.message.content)
            self.assertEqual(choice.finish_reason, "stop")
            self.assertEqual(
                answer.usage.total_tokens,
                answer.usage.prompt_tokens + answer.usage.completion_tokens,
            )

    def test_usage_reports_what_attention_read(self) -> None:
        options = {"max_completion_tokens": 8, "extra_body": {"ignore_eos": True}}
        read = {}
        for model in [DENSE, SPARSE]:
            answer = client.chat.completions.create(
                model=model, messages=ask(CASES[0]), temperature=0, **options
            )
            read[model] = answer.usage.model_extra["vattention"]
        self.assertEqual(read[DENSE]["read"], 1)
        self.assertLess(read[SPARSE]["read"], 1)
        self.assertGreater(read[SPARSE]["read"], 0)
        self.assertGreater(read[SPARSE]["index_bytes"], 0)

    def test_stream_equals_the_whole_answer(self) -> None:
        for seed in range(3):
            options = {"model": SPARSE, "messages": ask(CASES[seed]), "seed": seed}
            options |= {"max_completion_tokens": 40, "extra_body": {"ignore_eos": True}}
            whole = client.chat.completions.create(**options)
            stream = client.chat.completions.create(
                **options, stream=True, stream_options={"include_usage": True}
            )
            chunks = list(stream)
            parts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
            self.assertGreater(len(parts), 10)
            self.assertEqual("".join(parts), whole.choices[0].message.content)
            self.assertEqual(chunks[-1].usage.completion_tokens, 40)
            reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
            self.assertEqual([reason for reason in reasons if reason], ["length"])

    def test_log_probabilities_of_a_chat(self) -> None:
        answer = client.chat.completions.create(
            model=DENSE,
            messages=ask(CASES[0]),
            temperature=0,
            max_completion_tokens=4,
            logprobs=True,
            top_logprobs=3,
        )
        content = answer.choices[0].logprobs.content
        self.assertGreater(len(content), 0)
        for token in content:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertEqual(token.logprob, token.top_logprobs[0].logprob)

    def test_completions_with_log_probabilities_and_echo(self) -> None:
        answer = client.completions.create(
            model=DENSE, prompt=CASES[0].prompt, echo=True, logprobs=2, max_tokens=1, temperature=0
        )
        choice = answer.choices[0]
        scores = choice.logprobs
        count = answer.usage.prompt_tokens + answer.usage.completion_tokens
        for values in [scores.tokens, scores.token_logprobs, scores.top_logprobs]:
            self.assertEqual(len(values), count)
        self.assertIsNone(scores.token_logprobs[0])
        self.assertTrue(all(score <= 0 for score in scores.token_logprobs[1:]))
        self.assertEqual(scores.text_offset, sorted(scores.text_offset))
        self.assertIn(CASES[0].number, scores.tokens[-1])
        again = client.completions.create(
            model=DENSE, prompt=CASES[0].prompt, logprobs=2, max_tokens=1, temperature=0
        )
        self.assertEqual(again.choices[0].logprobs.token_logprobs, scores.token_logprobs[-1:])
        self.assertTrue(choice.text.endswith(again.choices[0].text))

    def test_completions_of_several_prompts(self) -> None:
        prompts = [case.prompt for case in CASES[:3]]
        answer = client.completions.create(
            model=SPARSE, prompt=prompts, max_tokens=4, temperature=0
        )
        texts = {choice.index: choice.text for choice in answer.choices}
        self.assertEqual(sorted(texts), [0, 1, 2])
        for index, case in enumerate(CASES[:3]):
            self.assertIn(case.number, texts[index])

    def test_errors_have_the_types_of_the_client(self) -> None:
        body = {"model": DENSE, "messages": ask(CASES[0])}
        cases = [
            (openai.BadRequestError, {**body, "temperature": -1}, "temperature"),
            (openai.BadRequestError, {**body, "max_completion_tokens": 100_000}, None),
            (openai.BadRequestError, {**body, "extra_body": {"unknown": 1}}, "unknown"),
            (openai.NotFoundError, {**body, "model": "none"}, "model"),
        ]
        for expected, arguments, parameter in cases:
            with self.subTest(parameter), self.assertRaises(expected) as caught:
                client.chat.completions.create(**arguments)
            if parameter:
                self.assertEqual(caught.exception.param, parameter)
        stranger = client.with_options(api_key="wrong")
        with self.assertRaises(openai.AuthenticationError) as caught:
            stranger.chat.completions.create(**body)
        self.assertEqual(caught.exception.code, "invalid_api_key")

    def test_concurrent_texts_equal_those_of_single_requests(self) -> None:
        def options(seed: int) -> dict:
            model, case = [DENSE, SPARSE][seed % 2], CASES[seed % len(CASES)]
            body = {"model": model, "prompt": case.prompt, "seed": seed, "temperature": 1}
            return {**body, "max_tokens": 24, "extra_body": {"ignore_eos": True}}

        async def ask_together() -> list:
            address = f"{server.address}/v1"
            async with openai.AsyncOpenAI(base_url=address, api_key=KEY, max_retries=0) as many:
                calls = [many.completions.create(**options(seed)) for seed in range(16)]
                return await asyncio.gather(*calls)

        together = [answer.choices[0].text for answer in asyncio.run(ask_together())]
        alone = [client.completions.create(**options(seed)) for seed in range(16)]
        self.assertEqual(together, [answer.choices[0].text for answer in alone])
        self.assertGreater(len(set(together)), 12)


class FullQueue(unittest.TestCase):
    def test_a_full_queue_is_a_rate_limit(self) -> None:
        small = Server(*recall_options(), "--max-sequences", "1", "--max-queue", "1")
        self.addCleanup(small.stop)
        limited = openai.OpenAI(base_url=f"{small.address}/v1", api_key="none", max_retries=0)
        self.addCleanup(limited.close)
        options = {"model": DENSE, "prompt": "What", "max_tokens": 16000}
        options |= {"extra_body": {"ignore_eos": True}, "stream": True}
        running = limited.completions.create(**options)
        next(iter(running))
        waiting = threading.Thread(target=self._read_first, args=(limited, options))
        waiting.start()
        while small.read_metrics()["vattention_queued"] == 0:
            time.sleep(0.01)
        with self.assertRaises(openai.RateLimitError) as caught:
            limited.completions.create(**options)
        self.assertIn("retry-after", caught.exception.response.headers)
        running.close()
        waiting.join()

    @staticmethod
    def _read_first(limited: openai.OpenAI, options: dict) -> None:
        with limited.completions.create(**options) as stream:
            next(iter(stream))


class LangChain(unittest.TestCase):
    def test_a_call(self) -> None:
        from langchain_openai import ChatOpenAI

        chat = ChatOpenAI(
            base_url=f"{server.address}/v1",
            api_key=KEY,
            model=SPARSE,
            temperature=0,
            max_completion_tokens=8,
        )
        message = chat.invoke(CASES[1].prompt)
        self.assertIn(CASES[1].number, message.content)
        self.assertGreater(message.usage_metadata["input_tokens"], 400)


if __name__ == "__main__":
    unittest.main()
