"""A real browser (Debian's Chromium) on the page of `kinora serve`: drops the bundled clip onto it, asks,
clicks an evidence time, reloads, gives it a broken file, does the same with the keyboard alone; axe-core looks for
accessibility faults, light and dark.

    browser.py PROGRAM SOURCE_DIR [SCREENSHOT_DIR]

Exits with 77 (skipped) where there is no chromium or no chromedriver.
"""
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

program, source = sys.argv[1], pathlib.Path(sys.argv[2])
shots = pathlib.Path(sys.argv[3] if len(sys.argv) > 3 else tempfile.mkdtemp())
chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
if not chromium or not driver:
    print("skipped: chromium and chromium-driver are not installed")
    sys.exit(77)

import axe_playwright_python
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from serving import Serving, patience

axe = next(pathlib.Path(axe_playwright_python.__file__).parent.rglob("axe.min.js")).read_text()
clip = source / "models" / "demo.mp4"


# Notes every state that the page goes through, however short: progress, and the newest answer's text.
WATCH = """
window.seen = {progress: [], texts: []};
const progress = document.getElementById("progress"), bar = document.getElementById("progress-bar");
new MutationObserver(() => {
  if (!progress.hidden) window.seen.progress.push([document.getElementById("progress-text").textContent, bar.position]);
}).observe(progress, {attributes: true, childList: true, characterData: true, subtree: true});
new MutationObserver(() => {
  const all = document.querySelectorAll(".message.assistant .text");
  const text = all.length ? all[all.length - 1].textContent : "";
  if (window.seen.texts.at(-1) !== text) window.seen.texts.push(text);
  window.seen.stop ||= !document.getElementById("stop").hidden;
}).observe(document.getElementById("messages"), {childList: true, characterData: true, subtree: true});
"""


def browser(width, height, dark=False):
    options = Options()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                 f"--window-size={width},{height}", "--hide-scrollbars"):
        options.add_argument(flag)
    if dark:
        options.add_argument("--blink-settings=preferredColorScheme=0")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver))


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.data = tempfile.TemporaryDirectory()
        cls.serving = Serving(program, "-m", "kinora-tiny", "--data", cls.data.name, "--media-root",
                              str(source / "models"))
        cls.page = browser(1280, 860)
        cls.page.get(cls.serving.url + "/")

    @classmethod
    def tearDownClass(cls):
        cls.page.quit()
        assert cls.serving.stop() == 0, cls.serving.logged()

    def wait(self, condition, what):
        return WebDriverWait(self.page, patience(240)).until(lambda _: condition(), what)

    def find(self, selector):
        return self.page.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.page.find_elements(By.CSS_SELECTOR, selector)

    def shot(self, name):
        self.page.save_screenshot(str(shots / f"{name}.png"))

    def check_accessibility(self, when, page=None):
        page = page or self.page
        page.execute_script(axe)
        found = page.execute_async_script("axe.run().then(arguments[0])")
        serious = [f"{v['id']}: {v['help']} {[n['target'] for n in v['nodes']]}" for v in found["violations"]
                   if v["impact"] in ("serious", "critical")]
        self.assertEqual(serious, [], when)

    def ask(self, question):
        answers = len(self.all(".message.assistant"))
        field = self.find("#question")
        field.send_keys(question)
        field.send_keys(Keys.ENTER)
        self.wait(lambda: len(self.all(".message.assistant")) == answers + 1 and self.find("#send").is_displayed(),
                  "no answer")
        return self.all(".message.assistant")[-1]

    def drop(self, path):
        """As a person drags a file from elsewhere onto the page and lets it go."""
        place = {"x": 300, "y": 300, "data": {"items": [], "files": [str(path)], "dragOperationsMask": 1}}
        for kind in ("dragEnter", "dragOver"):
            self.page.execute_cdp_cmd("Input.dispatchDragEvent", {"type": kind, **place})
        self.wait(lambda: "dragging" in self.find("body").get_attribute("class"), "a drag is not shown")
        self.shot("0-dragging")
        self.page.execute_cdp_cmd("Input.dispatchDragEvent", {"type": "drop", **place})
        self.wait(lambda: "dragging" not in self.find("body").get_attribute("class"), "a drop is not taken")

    def check_progress(self):
        """What was seen while the clip was uploaded and read."""
        seen = self.page.execute_script("return window.seen.progress")
        words = {text for text, _ in seen}
        self.assertTrue(any("demo.mp4" in text for text in words), words)
        self.assertLessEqual(words - {"Opening", "Looking through the file", "Watching"}, {"Uploading demo.mp4"})
        shares = [share for text, share in seen if text == "Watching"]
        self.assertGreater(len(shares), 3, seen)
        self.assertEqual(shares, sorted(shares), "the bar goes back")
        self.assertGreater(shares[-1], 0.9)

    def check_streaming(self, answer):
        """The answer grew piece by piece, and could be stopped."""
        text = answer.find_element(By.CSS_SELECTOR, ".text").text
        seen = self.page.execute_script("return window.seen")
        growing = [one for one in seen["texts"] if one.strip()]
        self.assertGreater(len(growing), 3, seen["texts"])
        for before, after in zip(growing, growing[1:]):
            self.assertTrue(after.startswith(before), (before, after))
        self.assertEqual(growing[-1].strip(), text)
        self.assertTrue(seen["stop"], "an answer that comes cannot be stopped")

    def check_figures(self):
        self.find("#figures-button").click()
        self.assertEqual(self.find("#figures-button").get_attribute("aria-expanded"), "true")
        self.wait(lambda: "tokens/s" in self.find("#figure-speed").text, "no figures")
        self.assertRegex(self.find("#figure-first").text, r"^\d+ ms$|^\d+\.\d s$")
        self.wait(lambda: re.match(r"[\d.]+ [KMG]iB$", self.find("#figure-host").text), "no memory in the figures")
        for name in ("device", "disk"):
            self.assertEqual(self.find(f"#figure-{name}").text, "0 B")
        self.assertEqual(self.find("#figure-queue").text, "0")

    def check_conversations(self):
        """A second conversation beside the first, and back again."""
        said = [one.text for one in self.all(".message")]
        self.find("#new-talk").click()
        self.assertEqual(self.all(".message"), [])
        self.assertTrue(self.find("#welcome").is_displayed())
        self.find("#ideas button").click()
        self.wait(lambda: self.all(".message.assistant") and self.find("#send").is_displayed(), "an idea is not asked")
        other = [one.text for one in self.all(".message")]
        self.assertEqual(len(other), 2)
        self.wait(lambda: self.find("#talks").is_displayed(), "no list of conversations")
        talks = Select(self.find("#talks"))
        self.assertEqual(len(talks.options), 2)
        talks.select_by_index(1)
        self.wait(lambda: [one.text for one in self.all(".message")] == said, "the first conversation is not shown again")
        self.shot("9-conversations")
        Select(self.find("#talks")).select_by_index(0)
        self.wait(lambda: [one.text for one in self.all(".message")] == other, "the second one is not shown again")

    def press(self, *keys):
        webdriver.ActionChains(self.page).send_keys(*keys).perform()

    def focused(self):
        return self.page.execute_script(
            "const e = document.activeElement; return e.id || e.className || e.tagName.toLowerCase()")

    def tab_to(self, what, back=False):
        """Presses the tabulator until this has the focus, which must be seen wherever it is."""
        for _ in range(80):
            if back:
                webdriver.ActionChains(self.page).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()
            else:
                self.press(Keys.TAB)
            ring = self.page.execute_script(
                "const e = document.activeElement; if (e === document.body) return true;"
                "const s = getComputedStyle(e.matches('input[type=file]') ? e.closest('label') : e);"
                "return s.outlineStyle !== 'none' || e.tagName === 'VIDEO'")
            self.assertTrue(ring, f"the focus on {self.focused()} is not seen")
            if self.page.execute_script("return document.activeElement.matches(arguments[0])", what):
                return
        self.fail(f"the keyboard does not reach {what}")

    def check_keyboard(self):
        self.page.refresh()
        self.wait(lambda: self.all(".message") and self.all("#timeline button"), "the page does not come back")
        self.page.execute_script("document.activeElement.blur()")
        self.tab_to(".skip")
        self.shot("10-keyboard")
        self.press(Keys.ENTER)
        self.assertEqual(self.focused(), "question")
        answers = len(self.all(".message.assistant"))
        self.press("Is there anything red?", Keys.ENTER)
        self.wait(lambda: len(self.all(".message.assistant")) == answers + 1 and self.find("#send").is_displayed(),
                  "no answer")
        self.tab_to(".evidence button", back=True)
        start = float(self.page.execute_script("return document.activeElement.dataset.start"))
        self.press(Keys.ENTER)
        where = "return document.getElementById('player').currentTime"
        self.wait(lambda: abs(self.page.execute_script(where) - start) < 1, "the keyboard does not play the evidence")
        self.page.execute_script("document.activeElement.blur()")
        for what in ("#figures-button", "#timeline button", "#remember", "#address", "#file-more", "#videos .open",
                     "#videos .delete", "#talks", "#new-talk", "#messages", "#question"):
            self.tab_to(what)

    def check_streams_and_memories(self):
        self.find("#remember").click()
        self.wait(lambda: self.all("#videos .sign.memory"), "no memory was saved")
        self.find("#address").send_keys("ftp://nowhere/film", Keys.ENTER)
        self.wait(lambda: self.find("#problem").is_displayed(), "no message about an address that is not allowed")
        self.find("#address").clear()
        self.find("#address").send_keys(f"file://{clip}", Keys.ENTER)
        self.wait(lambda: self.find("#halt").is_displayed(), "no stream is shown")
        self.wait(lambda: self.page.execute_script("return document.getElementById('picture').naturalWidth > 0"),
                  "nothing is seen of the stream")
        before = self.find("#about").text
        answer = self.ask("What is there now?")
        self.assertNotIn("failed", answer.get_attribute("class"), answer.text)
        self.assertTrue(answer.find_element(By.CSS_SELECTOR, ".text").text)
        self.wait(lambda: self.find("#about").text != before, "the stream does not go on")
        self.shot("7-stream")
        self.check_accessibility("stream")
        self.find("#halt").click()
        self.page.switch_to.alert.accept()
        self.wait(lambda: not self.all("#videos .sign.stream"), "the stream does not stop")
        self.find("#videos .sign.memory").find_element(By.XPATH, "..").click()
        self.wait(lambda: self.find("#memory").is_displayed(), "the memory is not opened")
        answer = self.ask("What was there?")
        self.assertNotIn("failed", answer.get_attribute("class"), answer.text)
        self.assertTrue(self.all("#timeline .seen"), "the timeline does not show what was looked at")
        self.shot("8-memory")
        self.all("#videos li")[-1].find_element(By.CSS_SELECTOR, ".delete").click()
        self.page.switch_to.alert.accept()
        self.wait(lambda: not self.all("#videos .sign.memory"), "the memory is not deleted")

    def test_everything_a_person_does(self):
        self.wait(lambda: self.find("#model").text == "kinora-tiny", "the page does not come up")
        self.shot("1-empty")
        self.check_accessibility("empty")

        self.page.execute_script(WATCH)
        self.drop(clip)
        self.wait(lambda: self.find("#stage").is_displayed(), "the upload does not end")
        self.wait(lambda: not self.find("#progress").is_displayed(), "reading does not end")
        self.check_progress()
        self.assertFalse(self.find("#problem").is_displayed(), self.find("#problem").text)
        self.wait(lambda: self.page.execute_script("return document.getElementById('player').duration > 0"),
                  "the clip does not play")
        self.wait(lambda: self.all("#timeline button"), "no scenes")
        self.shot("2-video")

        answer = self.ask("What happens in this video?")
        self.assertNotIn("failed", answer.get_attribute("class"), answer.text)
        self.assertTrue(answer.find_element(By.CSS_SELECTOR, ".text").text)
        self.check_streaming(answer)
        self.assertTrue(self.all("#timeline .seen"), "the timeline does not show what was looked at")
        evidence = answer.find_elements(By.CSS_SELECTOR, ".evidence button")
        self.assertTrue(evidence, "no evidence")
        self.wait(lambda: self.page.execute_script(
            "return [...document.querySelectorAll('.evidence img')].every(i => i.complete && i.naturalWidth > 0)"),
            "no thumbnails")
        last = max(evidence, key=lambda one: float(one.get_attribute("data-start")))
        start = float(last.get_attribute("data-start"))
        last.click()
        self.wait(lambda: abs(self.page.execute_script("return document.getElementById('player').currentTime") - start)
                  < 1, "the player does not move to the evidence")
        self.check_figures()
        self.shot("3-answer")
        self.check_accessibility("answer")
        said = [one.text for one in self.all(".message")]

        self.page.refresh()
        self.wait(lambda: [one.text for one in self.all(".message")] == said, "a reload forgets the conversation")
        answer = self.ask("Which colours are there?")
        self.assertNotIn("failed", answer.get_attribute("class"), answer.text)

        broken = pathlib.Path(self.data.name) / "broken.mp4"
        broken.write_bytes(b"this is not a video" * 100)
        self.find("#file-more").send_keys(str(broken))
        self.wait(lambda: self.find("#problem").is_displayed(), "no message about a broken file")
        self.assertIn("broken.mp4", self.find("#problem").text)
        self.assertNotIn(self.data.name, self.find("#problem").text)
        self.assertTrue(self.page.execute_script(
            "const box = document.getElementById('problem').getBoundingClientRect(), list = "
            "document.getElementById('watch').getBoundingClientRect(); return box.bottom <= list.bottom + 1"),
            "the message is out of sight")
        self.shot("4-broken")
        self.check_accessibility("broken file")
        self.check_conversations()
        self.check_keyboard()

        self.page.set_window_size(390, 844)
        self.shot("5-phone")
        self.assertLess(self.find("#remember").size["height"], 44, "a button is broken over two lines")
        row = self.page.execute_script(
            "const row = document.querySelector('#talk .row'); return row.scrollWidth - row.clientWidth")
        self.assertLessEqual(row, 0, "the list of conversations sticks out")
        wide = self.page.execute_script("return document.documentElement.scrollWidth - innerWidth")
        self.assertLessEqual(wide, 0, "the page is wider than a phone")
        self.check_accessibility("phone")
        self.page.set_window_size(1280, 860)

        dark = browser(1280, 860, dark=True)
        try:
            dark.get(self.serving.url + "/")
            self.assertTrue(dark.execute_script("return matchMedia('(prefers-color-scheme: dark)').matches"))
            WebDriverWait(dark, patience(240)).until(lambda d: d.find_element(By.ID, "stage").is_displayed())
            dark.find_element(By.ID, "figures-button").click()
            dark.find_element(By.ID, "question").send_keys("What is it?", Keys.ENTER)
            WebDriverWait(dark, patience(240)).until(lambda d: d.find_elements(By.CSS_SELECTOR, ".evidence button"))
            dark.save_screenshot(str(shots / "6-dark.png"))
            self.check_accessibility("dark", dark)
            # And what a failure looks like there.
            dark.find_element(By.ID, "file-more").send_keys(str(broken))
            WebDriverWait(dark, patience(240)).until(lambda d: d.find_element(By.ID, "problem").is_displayed())
            self.check_accessibility("broken file, dark", dark)
            dark.save_screenshot(str(shots / "6-dark-broken.png"))
        finally:
            dark.quit()
        self.check_streams_and_memories()
        self.all("#videos .delete")[0].click()
        self.page.switch_to.alert.dismiss()
        self.assertEqual(len(self.all("#videos .open")), 1, "deleted without being asked to")
        self.all("#videos .delete")[0].click()
        self.page.switch_to.alert.accept()
        self.wait(lambda: self.find("#drop").is_displayed() and not self.all("#videos .open"), "nothing is deleted")

        # A policy that forbids what the page needs, or a script that fails, shows up here.
        errors = [entry["message"] for entry in self.page.get_log("browser")
                  if entry["level"] == "SEVERE" and "/v1/videos?name=broken" not in entry["message"]
                  # An address that is refused, and a look at a stream that has just been stopped.
                  and "/v1/streams" not in entry["message"]]
        self.assertEqual(errors, [])


if __name__ == "__main__":
    shots.mkdir(parents=True, exist_ok=True)
    unittest.main(argv=sys.argv[:1], verbosity=2)
