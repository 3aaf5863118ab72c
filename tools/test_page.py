#!/usr/bin/env python3
"""Tests of the server's page in headless Chromium, with the model of `models/recall`.

    cargo build --release && python3 tools/test_page.py

Chromium and its driver are installed from Debian's packages if they are missing; the tests are
skipped where that is impossible. VATTENTION is the path of the command, if it is elsewhere.
"""

import time
import unittest
from pathlib import Path

from serving import webdriver
from serving.needles import Needle
from serving.server import start_with_key

ENTER = "\ue007"
KEY = "the-key-of-the-test"
ANSWER = ".assistant:last-of-type .text"
MARKUP = '<img src="/none" onerror="document.title = \'broken\'"> & <b>bold</b>'

# Records the length of the answer and the map at each change.
OBSERVE = """
window.seen = { answers: [], maps: [] };
const note = (id, list, read) => new MutationObserver(() => list.push(read()))
  .observe(document.getElementById(id), { childList: true, subtree: true, characterData: true });
note("messages", seen.answers,
  () => document.querySelector(".assistant:last-of-type .text")?.textContent.length ?? 0);
note("map", seen.maps, () => document.getElementById("map").innerText);
"""

# Replaces the next responses by a text or an error, in the form of the API.
ANSWER_WITH = """
const [status, text] = arguments;
const chunk = { choices: [{ index: 0, delta: { content: text }, finish_reason: null }] };
const error = { error: { message: text, type: "invalid_request_error" } };
const stream = `data: ${JSON.stringify(chunk)}\\n\\ndata: [DONE]\\n\\n`;
const body = status === 200 ? stream : JSON.stringify(error);
window.fetch = async () => new Response(body, { status });
"""

IDLE = "document.getElementById('stop').hidden"


def setUpModule() -> None:
    if not webdriver.install():
        print("the tests of the page are skipped: Chromium cannot be installed")
        raise unittest.SkipTest("Chromium cannot be installed")
    global server, browser
    server = start_with_key(KEY)
    unittest.addModuleCleanup(server.stop)
    browser = webdriver.Browser()
    unittest.addModuleCleanup(browser.close)


class ServerPage(unittest.TestCase):
    def setUp(self) -> None:
        browser.open(server.address)
        browser.run("sessionStorage.setItem('vattention.key', arguments[0])", KEY)
        browser.open(server.address)
        browser.wait_for("document.getElementById('model').options.length > 0")

    def configure(self, tokens: int) -> None:
        """Makes answers consist of exactly this number of most likely tokens."""
        browser.click("#settings summary")
        browser.type("#temperature", "0", clear=True)
        browser.type("#max_completion_tokens", str(tokens), clear=True)
        browser.click("#ignore_eos")

    def attach(self, text: str) -> None:
        browser.click("#attachment summary")
        browser.type("#document", text)

    def test_streams_an_answer_from_the_document_and_shows_the_map(self) -> None:
        needle = Needle(seed=1, sentences=400)
        browser.choose("#model", "recall@priority")
        self.configure(tokens=500)
        self.attach(needle.text)
        browser.run(OBSERVE)
        browser.type("#question", needle.question + ENTER)
        browser.wait_for(f"document.querySelector('{ANSWER}') && {IDLE}")
        self.assertIn(needle.number, browser.text(ANSWER))
        lengths = sorted(set(browser.run("return seen.answers")))
        self.assertGreater(len(lengths), 3, "the answer was shown in few parts")
        self.assertGreater(len(set(browser.run("return seen.maps"))), 1, "the map did not change")
        rows = browser.run("return document.querySelectorAll('#map tbody tr').length")
        cells = browser.run("return document.querySelectorAll('#map td').length")
        self.assertEqual((rows, cells), (3, 6))
        self.assertRegex(browser.text("#map td"), r"^[0-9.]+ %$")
        for tile in ["#speed", "#read", "#held"]:
            self.assertRegex(browser.text(tile), r"^[0-9.]+( %)?$", tile)
        self.assertIn("answer 500", browser.text("#facts"))
        self.assertTrue(browser.run("return document.getElementById('error').hidden"))

    def test_switches_the_map_to_error_bars_and_to_an_earlier_token(self) -> None:
        browser.choose("#model", "recall@priority")
        self.configure(tokens=20)
        self.attach(Needle(seed=2, sentences=400).text)
        browser.type("#question", "What is the special magic number?" + ENTER)
        browser.wait_for(f"document.querySelector('{ANSWER}') && {IDLE}")
        browser.wait_for("document.getElementById('map').innerText.includes('%')")
        browser.click("input[value=bar] + span")
        browser.wait_for("!document.getElementById('map').innerText.includes('%')")
        bars = browser.run("return document.getElementById('map').innerText")
        last = browser.text("#step")
        browser.type("#steps", "\ue011")  # the key Home
        browser.wait_for("document.getElementById('map').innerText !== arguments[0]", bars)
        self.assertTrue(browser.text("#step").startswith("Token 1 of"))
        self.assertNotEqual(browser.text("#step"), last)

    def test_dense_attention_reads_everything(self) -> None:
        browser.choose("#model", "recall@dense")
        self.configure(tokens=20)
        browser.type("#question", "What is the special magic number?" + ENTER)
        browser.wait_for(f"document.querySelector('{ANSWER}') && {IDLE}")
        self.assertEqual(browser.text("#read"), "100 %")

    def test_stops_an_answer_and_continues_the_chat(self) -> None:
        self.configure(tokens=12000)
        browser.type("#question", "What is the special magic number?" + ENTER)
        browser.wait_for(f"(document.querySelector('{ANSWER}')?.textContent ?? '') !== ''")
        browser.click("#stop")
        browser.wait_for(IDLE)
        self.assertEqual(browser.text(".assistant .note"), "stopped")
        self.assertTrue(browser.run("return document.getElementById('error').hidden"))
        self.expect_idle_server()
        written = browser.text(ANSWER)
        browser.type("#max_completion_tokens", "5", clear=True)
        browser.type("#question", "What is it?" + ENTER)
        browser.wait_for(f"document.querySelectorAll('.assistant').length === 2 && {IDLE}")
        self.assertEqual(browser.text(".assistant .text"), written)
        browser.click("#reset")
        self.assertFalse(browser.run("return document.querySelector('.message') !== null"))

    def expect_idle_server(self) -> None:
        """Waits until the server has noticed the end of the connection."""
        for _ in range(1200):
            running = server.read_metrics(KEY)["vattention_running"]
            if running == 0:
                return
            time.sleep(0.05)
        self.fail("the sequence of a stopped answer is still running")

    def test_shows_markup_as_text(self) -> None:
        browser.run(ANSWER_WITH, 200, MARKUP)
        browser.type("#question", MARKUP + ENTER)
        browser.wait_for(f"document.querySelector('{ANSWER}') && {IDLE}")
        self.assertEqual(browser.text(".user .text"), MARKUP)
        self.assertEqual(browser.text(ANSWER), MARKUP)
        browser.run(ANSWER_WITH, 400, MARKUP)
        browser.type("#question", "again" + ENTER)
        browser.wait_for("!document.getElementById('error').hidden")
        self.assertEqual(browser.text("#error"), f"400: {MARKUP}")
        found = browser.run("return document.querySelectorAll('main img, main b').length")
        self.assertEqual((found, browser.run("return document.title")), (0, "vattention"))

    def test_refuses_a_wrong_key_and_keeps_the_right_one(self) -> None:
        browser.click("#settings summary")
        browser.type("#key", f"wrong{ENTER}", clear=True)
        browser.wait_for("!document.getElementById('error').hidden")
        self.assertIn("401", browser.text("#error"))
        browser.type("#question", "What?" + ENTER)
        browser.wait_for(f"document.getElementById('question').value === 'What?' && {IDLE}")
        self.assertIn("401", browser.text("#error"))
        browser.type("#key", f"{KEY}\t", clear=True)
        browser.wait_for("document.getElementById('error').hidden")
        self.assertEqual(browser.run("return sessionStorage.getItem('vattention.key')"), KEY)

    def test_returns_a_question_that_the_server_refuses(self) -> None:
        self.configure(tokens=100000)
        browser.type("#question", "What?" + ENTER)
        browser.wait_for("!document.getElementById('error').hidden")
        self.assertIn("400", browser.text("#error"))
        self.assertEqual(browser.run("return document.getElementById('question').value"), "What?")

    def test_obeys_its_content_security_policy(self) -> None:
        browser.read_log()
        browser.open(server.address)
        browser.wait_for("document.getElementById('model').options.length > 0")
        self.assertEqual(browser.read_log(), [])


if __name__ == "__main__":
    unittest.main()
