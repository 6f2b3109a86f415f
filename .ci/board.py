#!/usr/bin/env python3
"""The page of `dittograd board` in headless Chromium: keys, live curves, comparison, diff, program, hostile names, no errors in the console.

    .ci/board.py PROGRAM                      tests it
    .ci/board.py PROGRAM --shots DIR RUNS     makes the pictures of the guide, of the runs in a folder

Needs Debian's `chromium`; without it, it says that it was skipped. The browser is driven through pipes (--remote-debugging-pipe), so that
nothing but Python is needed.
"""

import base64
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


class Browser:
    """Chromium with one page."""

    def __init__(self, home):
        to_read, self.to = os.pipe()
        self.answers, to_write = os.pipe()
        # Out of the way of 3 and 4, where the browser has its pipes.
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (to_read, to_write)]
        command = [
            shutil.which("chromium"), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--hide-scrollbars", "--disable-background-networking", f"--user-data-dir={home}", "--remote-debugging-pipe", "about:blank",
        ]
        shell = f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}'
        self.process = subprocess.Popen(["bash", "-c", shell, "bash", *command], pass_fds=theirs, stderr=subprocess.DEVNULL)
        for fd in (to_read, to_write, *theirs):
            os.close(fd)
        self.rest, self.number, self.session, self.errors = b"", 0, None, []
        target = next(t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def receive(self):
        while b"\0" not in self.rest:
            part = os.read(self.answers, 1 << 20)
            if not part:
                raise SystemExit("the browser has ended")
            self.rest += part
        message, self.rest = self.rest.split(b"\0", 1)
        message = json.loads(message)
        kind, what = message.get("method"), message.get("params", {})
        if kind == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.errors.append(str([a.get("value", a.get("description")) for a in what["args"]]))
        if kind == "Runtime.exceptionThrown":
            self.errors.append(what["exceptionDetails"].get("exception", {}).get("description", str(what)))
        if kind == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.errors.append(f'{what["entry"]["text"]} {what["entry"].get("url", "")}')
        if kind == "Network.requestWillBeSent" and not what["request"]["url"].startswith(("http://127.0.0.1:", "about:")):
            self.errors.append(f'asked another host: {what["request"]["url"]}')
        return message

    def send(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise SystemExit(f"{method}: {answer['error']}")
                return answer["result"]

    def value(self, script):
        """What a piece of JavaScript gives."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise SystemExit(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, script, seconds=30):
        """Waits until a piece of JavaScript is true; while a page loads, it may not run."""
        end = time.monotonic() + seconds
        while not self.value(f"(() => {{ try {{ return {script}; }} catch {{ return false; }} }})()"):
            if time.monotonic() > end:
                raise SystemExit(f"after {seconds} s it is not so: {script}\n{self.value('document.body.innerText')[:3000]}\n{self.errors}")
            time.sleep(0.05)

    def key(self, key, text=None):
        codes = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "ArrowLeft": 37, "ArrowRight": 39, "Tab": 9}
        text = text or {"Enter": "\r"}.get(key, key if len(key) == 1 else None)
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes.get(key, ord(key[0].upper())), **({"text": text} if text and kind == "keyDown" else {}))

    def look(self, width, height, scheme="light", scale=1):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def shot(self, path):
        time.sleep(0.4)
        Path(path).write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.process.terminate()
        self.process.wait()


class Board:
    """The program, with its page."""

    def __init__(self, program, folder):
        command = [program, "board", folder, "--port", "0", "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.address = json.loads(self.process.stdout.readline())["address"]

    def close(self):
        self.process.terminate()
        self.process.wait()


def metrics(folder, steps, scale=1.0):
    folder.mkdir(parents=True)
    lines = (f'{{"step":{i},"loss":{scale / (1 + i)},"lr":0.01,"seconds":{i / 100},"peak_bytes":1048576}}\n' for i in range(1, steps + 1))
    (folder / "metrics.jsonl").write_text("".join(lines))


def check(what, is_so, browser):
    if not is_so:
        raise SystemExit(f"not so: {what}\n{browser.value('document.body.innerText')[:3000]}\n{browser.errors}")
    print(f"  {what}")


HOSTILE = ["<script>window.hacked=1</script>", "<img src=x onerror=window.hacked=1>", "a\"'`${window.hacked=1}", "new\nline", "\u202eright to left", "javascript:hacked=1"]


def test(program, home):
    runs = home / "runs"
    runs.mkdir()
    board, browser = Board(program, runs), Browser(home / "profile")
    try:
        has = lambda text: f"document.body.innerText.includes({json.dumps(text)})"
        rows = "document.querySelectorAll('tbody tr').length"
        browser.look(1400, 900)
        browser.send("Page.navigate", url=board.address)
        browser.until(has("There are no runs in this folder yet"))
        check("the token is not in the address any more", browser.value("location.search") == "", browser)
        for name, lr in (("one", "1e-2"), ("two", "2e-2")):
            args = ["train", "mlp", "--samples", "300", "--steps", "60", "--lr", lr, "--norms", "--device", "cpu", "--threads", "1", "--quiet"]
            subprocess.run([program, *args, "--out", runs / name], check=True, stdout=subprocess.DEVNULL)
        browser.until(f"{rows} === 2")
        check("runs appear by themselves", True, browser)
        browser.until("document.querySelectorAll('td .mono').length === 2 && [...document.querySelectorAll('td .mono')].every((e) => e.innerText.length === 16)")
        check("with their fingerprints, unverified", browser.value("document.querySelectorAll('.badge').length") == 2, browser)
        badges = "document.querySelectorAll('.badge.verified').length"
        subprocess.run([program, "verify", runs / "one", "--device", "cpu", "--quiet"], check=True, stdout=subprocess.DEVNULL)
        browser.until(f"{badges} === 1")
        check("one is verified", True, browser)
        subprocess.run([program, "train", "--resume", runs / "one", "--steps", "70", "--device", "cpu", "--quiet"], check=True, stdout=subprocess.DEVNULL)
        browser.until(f"{badges} === 0 && document.querySelectorAll('.badge').length === 2")
        check("and no longer once it has gone on", True, browser)
        for name in HOSTILE:
            metrics(runs / name.replace("/", "|"), 50)
        (runs / "one" / "<b>bold.txt").write_text("<script>window.hacked=1</script>")
        (runs / "one" / "evil.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"><script>window.hacked=1</script></svg>')
        (runs / "two" / "metrics.jsonl").open("a").write('{"step":60,"<img src=x onerror=hacked=1>":1}\n{"step":60,"__proto__":2}\n\xff{{{\n')
        browser.until(f"{rows} === {2 + len(HOSTILE)}")
        browser.key("/")
        for letter in "mlp":
            browser.key(letter)
        browser.until(f"{rows} === 2")
        browser.key("Enter")
        check("/ filters, Enter goes to the list", browser.value("document.activeElement.tagName") == "TR", browser)
        for key in ("Home", " ", "ArrowDown", " "):
            browser.key(key)
        check("Space selects", browser.value("document.querySelectorAll('tr[aria-selected=true]').length") == 2, browser)
        browser.key("d")
        browser.until(has("tensors differ") + "&&" + has("optimizer.lr"))
        check("d shows the diff of two", "#diff" in browser.value("location.hash"), browser)
        browser.key("Escape")
        browser.until(f"{rows} === 2")
        browser.key("c")
        browser.until("document.querySelectorAll('.plot').length >= 5 && document.querySelectorAll('.differs').length > 0")
        check("c compares, with what differs", "#compare" in browser.value("location.hash"), browser)
        browser.key("Escape")
        browser.until(f"{rows} === 2")
        browser.key("Enter")
        browser.until("document.querySelectorAll('.plot').length >= 5 && document.querySelectorAll('.pictures img').length > 0")
        browser.until("[...document.images].every((i) => i.complete)")
        check("Enter opens a run with its plots and pictures", browser.value("[...document.images].some((i) => i.naturalWidth > 0)"), browser)
        browser.key("p")
        browser.until("document.querySelectorAll('.drawing g').length > 3")
        before = browser.value("document.querySelector('.drawing svg').getAttribute('viewBox')")
        browser.key("+")
        check("the program is drawn, + zooms", before != browser.value("document.querySelector('.drawing svg').getAttribute('viewBox')"), browser)
        browser.key("Escape")
        # The address changes before the page.
        browser.until("location.hash.startsWith('#run') && document.querySelectorAll('.plot').length >= 5")
        browser.key("Escape")
        browser.until(f"{rows} === 2")
        browser.key("Escape")
        browser.until(f"{rows} === {2 + len(HOSTILE)}")
        for run in browser.value("[...document.querySelectorAll('td.name a')].map((a) => a.hash)"):
            browser.value(f"location.hash = '{run}'")
            browser.until("document.querySelectorAll('.plot').length > 0")
        browser.value("location.hash = ''")
        browser.until(rows)
        check("hostile names are text", browser.value("window.hacked === undefined && document.scripts.length === 1"), browser)
        metrics(runs / "live", 10)
        browser.until(f"{rows} === {3 + len(HOSTILE)}")
        browser.value("[...document.querySelectorAll('td.name a')].find((a) => a.innerText === 'live').click()")
        browser.until("document.querySelectorAll('.plot').length > 0")
        with (runs / "live" / "metrics.jsonl").open("a") as file:
            file.write('{"step":500,"loss":0.123456,"lr":0.01,"seconds":9}\n')
        browser.until("document.querySelector('.plot .legend').innerText.includes('0.1235')")
        check("curves grow while one looks", True, browser)
        names = [f"grad_norm/blocks.{i}.{part}" for i in range(11) for part in ("weight", "bias")]
        (runs / "deep").mkdir()
        lines = ({"step": step, "loss": 1 / step, **{name: i + 1 / step for i, name in enumerate(names)}} for step in range(1, 20))
        (runs / "deep" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        for name, title, labels in (("one", "gradient norms", ["net.0.bias", "net.4.weight"]), ("deep", "gradient norms of blocks.10", ["bias", "weight"])):
            browser.value("location.hash = ''")
            link = f"[...document.querySelectorAll('td.name a')].find((a) => a.innerText === '{name}')"
            browser.until(f"{link} !== undefined")
            browser.value(f"{link}.click()")
            plot = f"[...document.querySelectorAll('.plot')].find((p) => p.querySelector('figcaption span').innerText === '{title}')"
            browser.until(f"{plot} !== undefined")
            browser.until(f"{json.dumps(labels)}.every((l) => [...{plot}.querySelectorAll('li')].some((e) => e.innerText.startsWith(l)))")
            check(f"{title} have curves", browser.value(f"{plot}.querySelector('button').getAttribute('aria-pressed')") == "true", browser)
        metrics(runs / "long", 1_000_000)
        start = time.monotonic()
        browser.value("location.hash = ''")
        browser.until("[...document.querySelectorAll('td.name a')].some((a) => a.innerText === 'long')")
        browser.value("[...document.querySelectorAll('td.name a')].find((a) => a.innerText === 'long').click()")
        browser.until("document.querySelectorAll('.plot').length > 0 && document.querySelector('.plot canvas').getAttribute('aria-label').includes('1,000,000')", 120)
        print(f"  a million steps are drawn after {time.monotonic() - start:.1f} s")
        for scheme in ("dark", "light"):
            browser.look(1400, 900, scheme)
        check("nothing in the console, no other host", browser.errors == [], browser)
    finally:
        browser.close()
        board.close()


def shots(program, home, folder, runs):
    board, browser = Board(program, runs), Browser(home / "profile")
    try:
        click = lambda name: browser.value(f"[...document.querySelectorAll('td.name a')].find((a) => a.innerText === {json.dumps(name)}).click()")
        choose = lambda name: browser.value(f"[...document.querySelectorAll('td.name a')].find((a) => a.innerText === {json.dumps(name)}).closest('tr').querySelector('input').click()")
        for scheme in ("light", "dark"):
            browser.look(1620, 460, scheme)
            browser.send("Page.navigate", url=board.address)
            browser.until("document.querySelectorAll('tbody tr').length > 3 && [...document.querySelectorAll('td .mono')].filter((e) => e.innerText).length > 5")
            chosen = ["spirals/lr-0.01", "spirals/lr-0.03", "spirals/sgd"]
            for name in chosen:
                choose(name)
            browser.shot(folder / f"board-list-{scheme}.png")
            browser.look(1400, 800, scheme)
            browser.value("[...document.querySelectorAll('button')].find((b) => b.innerText === 'Compare').click()")
            browser.until("document.querySelectorAll('.plot').length >= 5 && document.querySelectorAll('.differs').length > 0")
            browser.shot(folder / f"board-compare-{scheme}.png")
            browser.value("location.hash = ''")
            browser.until("document.querySelectorAll('tbody tr').length > 3")
            hashes = browser.value("Object.fromEntries([...document.querySelectorAll('td.name a')].map((a) => [a.innerText, a.hash.split('/')[1]]))")
            click(next(n for n in ("long", "sums", "burgers") if n in hashes))
            browser.until("document.querySelectorAll('.plot').length >= 5")
            browser.shot(folder / f"board-run-{scheme}.png")
            views = [
                ("diff", [hashes[n] for n in chosen[:2]], "document.querySelectorAll('h2').length > 0"),
                ("program", [hashes.get("burgers", "1")], "document.querySelectorAll('.drawing g').length > 3"),
            ]
            for what, numbers, wait in views:
                browser.value(f"location.hash = '{what}/{','.join(numbers)}'")
                browser.until(wait)
                browser.shot(folder / f"board-{what}-{scheme}.png")
        print("\n".join(browser.errors) or "no errors in the console")
    finally:
        browser.close()
        board.close()


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    program = str(Path(sys.argv[1]).resolve())
    if shutil.which("chromium") is None:
        print("skipped: there is no chromium")
        return
    signal.alarm(400)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        if sys.argv[2:3] == ["--shots"]:
            shots(program, Path(home), Path(sys.argv[3]), sys.argv[4])
        else:
            test(program, Path(home))


if __name__ == "__main__":
    main()
