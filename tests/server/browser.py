"""A real browser (Debian's Chromium) on the page of `kinora serve`: uploads the bundled clip, asks,
clicks an evidence time, reloads, gives it a broken file; axe-core looks for accessibility faults.

    browser.py PROGRAM SOURCE_DIR [SCREENSHOT_DIR]

Exits with 77 (skipped) where there is no chromium or no chromedriver.
"""
import pathlib
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
from selenium.webdriver.support.ui import WebDriverWait

from serving import Serving, patience

axe = next(pathlib.Path(axe_playwright_python.__file__).parent.rglob("axe.min.js")).read_text()
clip = source / "models" / "demo.mp4"


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

    def check_accessibility(self, when):
        self.page.execute_script(axe)
        found = self.page.execute_async_script("axe.run().then(arguments[0])")
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

        self.find("#file").send_keys(str(clip))
        self.wait(lambda: self.find("#stage").is_displayed(), "the upload does not end")
        self.wait(lambda: not self.find("#progress").is_displayed(), "reading does not end")
        self.assertFalse(self.find("#problem").is_displayed(), self.find("#problem").text)
        self.wait(lambda: self.page.execute_script("return document.getElementById('player').duration > 0"),
                  "the clip does not play")
        self.wait(lambda: self.all("#timeline button"), "no scenes")
        self.shot("2-video")

        answer = self.ask("What happens in this video?")
        self.assertNotIn("failed", answer.get_attribute("class"), answer.text)
        self.assertTrue(answer.find_element(By.CSS_SELECTOR, ".text").text)
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
        self.find("#figures-button").click()
        self.wait(lambda: "tokens/s" in self.find("#figure-speed").text, "no figures")
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
        self.shot("4-broken")

        self.page.set_window_size(390, 844)
        self.shot("5-phone")
        wide = self.page.execute_script("return document.documentElement.scrollWidth - innerWidth")
        self.assertLessEqual(wide, 0, "the page is wider than a phone")
        self.check_accessibility("phone")
        self.page.set_window_size(1280, 860)

        dark = browser(1280, 860, dark=True)
        try:
            dark.get(self.serving.url + "/")
            WebDriverWait(dark, patience(240)).until(lambda d: d.find_element(By.ID, "stage").is_displayed())
            dark.save_screenshot(str(shots / "6-dark.png"))
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
