/* A real browser for tests: node TEST.mjs PAGE.html FOLDER [PART...]. Chromium (CHROMIUM=...) without
   a window, asked over a pipe by the DevTools protocol; no package but node itself. Screenshots go to
   FOLDER. */
import { spawn } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";

export const [page, folder] = process.argv.slice(2, 4).map((name) => path.resolve(name));
const chosen = process.argv.slice(4);               /* parts, by name; without any, all of them */
export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
let passed = 0, failed = 0;
export function check(what, ok, seen = "") {
  if (ok) passed++;
  else failed++;
  console.log(`${ok ? "ok" : "FAILED"} ${what}${seen === "" || ok ? "" : ": " + seen}`);
}

export const home = fs.mkdtempSync(path.join(os.tmpdir(), "playground-"));
const browser = spawn(process.env.CHROMIUM || "chromium", ["--headless", "--no-sandbox",
  "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
  "--user-data-dir=" + home, "about:blank"], {
    stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
const gone = new Promise((done) => browser.on("exit", done).on("error", done));
let asked = 0, rest = "", session;
const waiting = new Map();
export const troubles = [], requests = [];     /* errors of the page; addresses it asked for */
function arrived(message) {
  const { id, method, params, result, error } = message;
  if (id) {
    const { done, fail } = waiting.get(id);
    waiting.delete(id);
    if (error) fail(Error(error.message));
    else done(result);
  } else if (method === "Runtime.exceptionThrown")
    troubles.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
  else if (method === "Runtime.consoleAPICalled" && ["error", "warning"].includes(params.type))
    troubles.push(params.args.map((a) => a.description ?? a.value).join(" "));
  else if (method === "Log.entryAdded" && params.entry.level === "error")
    troubles.push(params.entry.text);
  else if (method === "Network.requestWillBeSent") requests.push(params.request.url);
}
browser.stdio[4].setEncoding("utf8").on("data", (data) => {
  const messages = (rest + data).split("\0");
  rest = messages.pop();
  messages.forEach((m) => arrived(JSON.parse(m)));
});
export const send = (method, params = {}) => new Promise((done, fail) => {
  waiting.set(++asked, { done, fail });
  browser.stdio[3].write(JSON.stringify({ id: asked, method, params, sessionId: session }) + "\0");
});
export async function js(expression) {
  const { result, exceptionDetails } = await send("Runtime.evaluate",
    { expression, awaitPromise: true, returnByValue: true });
  if (exceptionDetails)
    throw Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
  return result.value;
}
/* Waits until an expression is true. Returns its value, or undefined after `seconds`. */
export async function until(expression, seconds = 60) {
  for (const end = Date.now() + 1000 * seconds; Date.now() < end; await sleep(40)) {
    const value = await js(expression);
    if (value) return value;
  }
}
export async function open(hash) {
  await send("Page.navigate", { url: "about:blank" });
  await send("Page.navigate", { url: "file://" + page + hash });
  if (!(await until("document.body?.dataset.ready"))) throw Error("the page does not get ready");
}
export async function screen(name, width, height, dark) {
  await send("Emulation.setDeviceMetricsOverride",
    { width, height, deviceScaleFactor: width < 500 ? 2 : 1, mobile: width < 500 });
  await send("Emulation.setEmulatedMedia",
    { features: [{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }] });
  await sleep(250);
  if (!name) return;
  const { data } = await send("Page.captureScreenshot", { format: "png" });
  fs.writeFileSync(path.join(folder, name + ".png"), Buffer.from(data, "base64"));
}

export async function key(text, code = text) {
  await send("Input.dispatchKeyEvent",
    { type: "keyDown", key: text, code, text: text.length === 1 ? text : undefined });
  await send("Input.dispatchKeyEvent", { type: "keyUp", key: text, code });
}
/* The least contrast (WCAG 2) of the texts that are visible in the elements that a selector names, to
   the first opaque background behind each, and the text that has it. */
export const contrast = (selector) => js(`(() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255)
    .map((v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, k) => sum + v * [.2126, .7152, .0722][k], 0);
  let least = 21, text = "";
  for (const e of document.querySelectorAll(${JSON.stringify(selector)})) {
    const own = [...e.childNodes].filter((n) => n.nodeType === 3 && n.data.trim());
    if (!own.length || !e.checkVisibility({ visibilityProperty: true }) || e.disabled) continue;
    let behind = e, paper = [255, 255, 255, 1];
    for (; behind; behind = behind.parentElement) {
      const found = parts(getComputedStyle(behind).backgroundColor);
      if (found.length === 3 || found[3] === 1) { paper = found; break; }
    }
    const a = light(parts(getComputedStyle(e).color)), b = light(paper);
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < least) least = ratio, text = own[0].data.trim().slice(0, 40);
  }
  return [Math.round(least * 100) / 100, text];
})()`);

export const click = (id) => js(`document.getElementById("${id}").click()`);
export const says = (id) => js(`document.getElementById("${id}").textContent.trim()`);

/* Runs the parts that were chosen, then `last`. The last line printed is: N passed, N failed. */
export async function visit(parts, last) {
  try {
    const { targetInfos } = await send("Target.getTargets");
    const { targetId } = targetInfos.find(({ type }) => type === "page");
    ({ sessionId: session } = await send("Target.attachToTarget", { targetId, flatten: true }));
    for (const domain of ["Runtime", "Page", "Log", "Network"]) await send(domain + ".enable");
    await send("Emulation.setScrollbarsHidden", { hidden: true });
    await screen("", 1280, 900, false);
    for (const part of parts) {
      if (chosen.length && !chosen.includes(part.name)) continue;
      try { await part(); }
      catch (error) { check(part.name, false, error.message); }
    }
    if (last) await last();
    check("no error on the console", troubles.length === 0, troubles.join("; "));
    const outside = requests.filter((url) => !/^(file|blob|data|about):/.test(url));
    check("no network", outside.length === 0, outside.join(" "));
  } catch (error) { check("the browser", false, error.message); }
  send("Browser.close").catch(() => {});
  await Promise.race([gone, sleep(3000)]);
  browser.kill("SIGKILL");
  await sleep(200);
  fs.rmSync(home, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 });
  console.log(`${passed} passed, ${failed} failed`);
  process.exit(failed ? 1 : 0);
}
