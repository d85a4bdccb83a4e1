/* The playground in a real browser: node playground.mjs PAGE.html FOLDER [PART...], as draw walk.
   Screenshots go to FOLDER. The last line is: N passed, N failed. */
import fs from "node:fs";
import path from "node:path";
import { check, click, contrast, home, js, key, open, page, says, screen, send, sleep,
  troubles, until, visit } from "./browser.mjs";

/* Takes screenshots of a panel on a desktop and a phone, in light and dark. */
async function pictures(panel) {
  for (const dark of [false, true]) {
    await screen(`${panel}-desk-${dark ? "dark" : "light"}`, 1280, 800, dark);
    await screen(`${panel}-phone-${dark ? "dark" : "light"}`, 390, 844, dark);
  }
  const [wide, room] = await js("[document.documentElement.scrollWidth, innerWidth]");
  check(`${panel}: fits the width of a phone`, wide <= room, `${wide} of ${room}`);
  await screen("", 1280, 900, false);
}

/* ---- what a visitor does ---- */
const box = (id) => js(`(() => { const e = document.getElementById("${id}");
  e.scrollIntoView({ block: "center" });
  const r = e.getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })()`);
async function stroke(id, points, touch) {
  const [left, top, width, height] = await box(id);
  const event = ([x, y], kind) => {
    const at = { x: left + x * width, y: top + y * height };
    return touch ? send("Input.dispatchTouchEvent", {
      type: "touch" + ["Start", "Move", "End"][kind],
      touchPoints: kind < 2 ? [at] : [] })
      : send("Input.dispatchMouseEvent", { type: "mouse" + ["Pressed", "Moved", "Released"][kind],
        ...at, button: "left", buttons: kind < 2 ? 1 : 0, clickCount: 1 });
  };
  await event(points[0], 0);
  for (let k = 1; k < points.length; k++)
    for (let t = 1; t <= 8; t++)
      await event(points[k].map((v, i) => points[k - 1][i] + (v - points[k - 1][i]) * t / 8), 1);
  await event(points.at(-1), 2);
}
const answer = () => js("({ ...document.getElementById('label').dataset })");
const canvas = (id) => js(`document.getElementById("${id}").toDataURL()`);
const seven = [[.3, .32], [.32, .27], [.5, .26], [.66, .24], [.68, .3], [.58, .55], [.47, .84]];

/* Checks the story: a seven, then a face, until the visitor draws. */
async function story() {
  await open("");
  check("the story: a seven is familiar", await until("/seven/.test($('label').textContent) && " +
    "$('verdict').dataset.verdict === 'familiar'", 60), await says("verdict"));
  check("the story: it is told to the end",
    await until("document.getElementById('story').dataset.told", 60));
  check("the story: softmax names a face a digit, familiarity finds it strange",
    /^Softmax: [a-z]+, \d+%. Familiarity: unlike all training images/.test(await says("story")) &&
    await says("verdict") === "strange", await says("story"));
  check("the story: leaves no drawing in the URL", !/ink=/.test(await js("location.hash")));
  await pictures("story");
  await js("document.getElementById('present').click()");
  await screen("preview", 1200, 630, false);        /* examples/gallery/preview.png */
  await js("document.getElementById('present').click()");
  await screen("", 1280, 900, false);
  await stroke("pad", seven);
  check("the story: the visitor's first stroke begins on an empty pad",
    await until("document.getElementById('label').dataset.label === '7'", 20) &&
    /ink=[^.]*(&|$)/.test(await until("/ink=/.test(location.hash) && location.hash", 5)),
    await js("location.hash"));
}

async function draw() {
  await open("#draw");
  await js(`(window.heard = [], new MutationObserver((all) => all.forEach(({ target }) =>
    target.closest("[aria-live]") && heard.push(target.textContent)))
    .observe(document.body, { subtree: true, childList: true }))`);
  await stroke("pad", seven);
  await until("heard.length", 20);                  /* the pen is lifted: the answer to all of it */
  await until("document.getElementById('label').dataset.label === '7'", 20);
  let a = await answer();
  check("a seven, drawn: it reads seven", (await says("label")).startsWith("seven"),
    await says("label"));
  /* in one look: on a busy machine the answer to the end of the stroke may come in between */
  const [gauge, verdict, familiar] = await js(`[$("gauge").getAttribute("aria-label"),
    $("verdict").textContent.trim(), Number($("label").dataset.familiar)]`);
  const share = Number(gauge.match(/^[\d.]+/)[0]);
  check("the gauge agrees with the sentence", Math.abs(share - 100 * familiar) < .06 &&
    gauge.endsWith(verdict), gauge + " " + verdict + " " + familiar);
  check("it looks familiar", Number(a.familiar) >= .1 &&
    /^Familiar/.test(await says("familiar")), await says("familiar"));
  await sleep(300);
  const heard = await js("heard");
  check("the answer is said once, when the pen is lifted",
    heard.length === 1 && /^Softmax: seven.*\. Familiar: /.test(heard[0]), heard.join(" | "));
  const hash = await js("location.hash"), before = await canvas("seen");
  await click("slope"), await sleep(200);
  check("the slope of log p(x) is shown", before !== await canvas("seen"));
  await open(hash);
  const start = await until("document.getElementById('label').dataset.label && performance.now()",
    20);
  check("the URL brings the drawing back", (await answer()).label === "7" && hash.includes("ink="),
    hash);
  console.log(`first answer: ${start.toFixed(0)} ms after the file was opened, ` +
    `${Number((await answer()).ms).toFixed(0)} ms of them to calculate it`);
  await pictures("draw");

  await click("clear");
  for (const [x, y] of [[.2, .2], [.8, .2], [.2, .8], [.8, .8]]) await stroke("pad",
    [[x, y], [x + .01, y]]);
  await until("/strange/.test(document.getElementById('verdict').textContent)", 20);
  check("four dots: strange", /^Strange: unlike all training images/.test(await says("familiar")),
    await says("familiar"));

  await js("document.getElementById('pad').focus()");
  await key("Delete"), await key("3", "Digit3");
  await until("document.getElementById('label').dataset.label === '3'", 20);
  check("keyboard: a held-out three is shown, and read", (await answer()).label === "3",
    await says("label"));
  await key("Delete");
  for (const name of ["ArrowUp", "ArrowUp", "ArrowUp", "ArrowUp", "ArrowUp"]) await key(name);
  await key(" ", "Space");
  for (let k = 0; k < 10; k++) await key("ArrowDown");
  await until("document.getElementById('label').dataset.label === '1'", 20);
  check("keyboard: a line down is a one", (await answer()).label === "1", await says("label"));
  await key("Backspace"), await key(" ", "Space");
  for (let k = 0; k < 10; k++) await key("ArrowUp");
  await until("document.getElementById('label').dataset.label === '1'", 5);
  check("keyboard: to take a line back lifts the pen; space puts it down again",
    (await answer()).label === "1", await says("label"));

  await screen("", 390, 844, false);
  await click("clear");
  await stroke("pad", seven, true);
  await until("document.getElementById('label').dataset.label === '7'", 20);
  check("touch: a seven", (await answer()).label === "7", await says("label"));
  await click("clear");
  const [left, top, width, height] = await box("pad");
  const touch = (kind, ...at) => send("Input.dispatchTouchEvent", { type: "touch" + kind,
    touchPoints: at.map(([x, y], id) => ({ x: left + x * width, y: top + y * height, id })) });
  await touch("Start", [.5, .1]);
  for (let k = 0; k < 9; k++) {
    const palm = k < 2 ? [] : [[.9, .9 - .01 * k]];
    await touch(k === 2 ? "Start" : "Move", [.5, .1 + .1 * k], ...palm);
  }
  await touch("End");
  await until("document.getElementById('label').dataset.label === '1'", 5), await sleep(200);
  check("touch: one finger draws, in spite of other touches",
    (await answer()).label === "1" && /ink=[^.]*(&|$)/.test(await js("location.hash")),
    await says("label") + " " + await js("location.hash"));
  await click("clear");
  const pen = (kind, y) => send("Input.dispatchMouseEvent", { type: "mouse" + kind,
    x: left + .5 * width, y: top + y * height, pointerType: "pen", button: "left",
    buttons: kind === "Released" ? 0 : 1, clickCount: 1 });
  await touch("Start", [.9, .95]);
  await pen("Pressed", .1);
  for (let k = 1; k < 9; k++) await pen("Moved", .1 + .1 * k);
  await pen("Released", .9), await touch("End");
  await until("document.getElementById('label').dataset.label === '1'", 5), await sleep(200);
  check("touch: a pen takes over from the palm, which leaves no mark",
    (await answer()).label === "1" && /ink=[^.]*(&|$)/.test(await js("location.hash")),
    await says("label") + " " + await js("location.hash"));
  await screen("", 1280, 900, false);
}

async function fill() {
  await open("#draw?digit=80");
  await until("document.getElementById('label').dataset.label", 20);
  const whole = await canvas("seen");
  for (const y of [.62, .72, .82, .92]) await stroke("seen", [[.1, y], [.9, y]]);
  const covered = await canvas("seen");
  check("a part is erased", whole !== covered);
  await click("slope");
  check("without a slope, the note does not mention one", covered === await canvas("seen") &&
    /^Erase/.test(await says("seen-note")), await says("seen-note"));
  await click("slope");
  await sleep(300);
  await open(await js("location.hash"));
  await until("!document.getElementById('fill').disabled", 20);
  check("the URL contains the erased part", covered === await canvas("seen"));
  await click("fill");
  check("it is filled in, in ten ways", await until(
    "document.getElementById('ways').children.length === 10 && " +
    "/^Ten samples/.test(document.getElementById('seen-note').textContent)", 90));
  const ways = await js("[...document.getElementById('ways').children].map((c) => c.toDataURL())");
  check("they differ from what was covered, and from each other",
    !ways.includes(covered) && new Set(ways).size === 10, new Set(ways).size);
  await screen("fill", 1280, 800, false);
  for (const when of ["afterwards", "half way"]) {
    await click("tab-fool"), await click("tab-draw");
    await until(`document.getElementById("seen").toDataURL() === "${covered}"`, 3);
    check(`filled in, and the panel left ${when}: the part is erased again`,
      covered === await canvas("seen") && /^Erase/.test(await says("seen-note")) &&
      await js("document.getElementById('ways').hidden"), await says("seen-note"));
    if (when === "half way") break;
    await click("fill");
    await until("!document.getElementById('ways').hidden", 20);
  }
}

/* Checks that a panel pauses while the page is hidden, and remains paused if it was. */
async function rests(panel) {
  const runs = () => says(panel + "-run"), seen = [await runs()];
  for (const hidden of [true, false]) {
    await js(`(Object.defineProperty(document, "hidden", { value: ${hidden}, configurable: true }),
      void document.dispatchEvent(new Event("visibilitychange")))`);
    seen.push(await runs());
  }
  await click(panel + "-run"), seen.push(await runs());
  await click("tab-draw"), await click("tab-" + panel), seen.push(await runs());
  await click(panel + "-run"), seen.push(await runs());
  check(`${panel}: rests while hidden; paused, it stays so behind another tab`,
    seen.join() === "Pause,Resume,Pause,Resume,Resume,Pause", seen.join());
}

async function dream() {
  await open("#dream?kind=each&rate=120");
  const data = (name) => js(`document.getElementById("chains").dataset.${name} ?? ""`);
  const shown = () => js("[...document.querySelectorAll('#chains canvas')]" +
    ".map((c) => c.toDataURL()).join()");
  await until("document.getElementById('chains').dataset.steps > 0");
  await js(`(window.speeds = [], void new MutationObserver(() => speeds.push(
    $("dream-speed").textContent)).observe($("dream-speed"), { childList: true }))`);
  const frames = new Set();
  for (let k = 0; k < 4; k++) frames.add(await shown()), await sleep(300);
  check("dreams: frames change", frames.size === 4, frames.size);
  await until("document.getElementById('chains').dataset.steps >= 320 && speeds.length >= 60", 90);
  const blinks = (await js("speeds")).map((s) => /second/.test(s) ? 1 : 0).join("");
  check("dreams: their speed, once it is known, stays", /^0*1{40,}$/.test(blinks), blinks);
  console.log(`dreams: ${await data("rate")} steps of ten chains a second`);
  const names = await js("[...document.querySelectorAll('#chains figcaption')]" +
    ".map((c) => c.textContent.split(' ')[0])");
  const words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
  const right = words.filter((w, k) => names[k] === w).length;
  const sure = (await data("sure")).split(" ").filter((p) => p > .5).length;
  check("dreams: at the end, chains are the requested digits", right >= 8 && sure >= 8,
    names.join(" "));
  await pictures("dream");
  await js(`(() => {
    const asked = [...worker("chains").asked.values()].filter(({ tell }) => tell).at(-1);
    const tell = asked.tell;
    asked.tell = (told) => { window.dreamt = told.shown, tell(told); };
  })()`);
  const paper = (await until("window.dreamt && [...dreamt]", 10)).filter((v) => v < -.6);
  const grain = Math.sqrt(paper.reduce((sum, v) => sum + (v + 1) ** 2, 0) / paper.length);
  check("dreams: the last noise is taken off as jem_denoise_desc_clean does", grain < .09,
    grain.toFixed(3));
  await rests("dream");
  await click("dream-run"), await sleep(400);
  const still = await shown();
  await sleep(300);
  check("dreams: pause", still === await shown());
  await js("document.querySelector('#chains canvas').focus()");
  for (const [what, how] of [["a poke", () => key("Enter")], ["R", () => key("r", "KeyR")],
    ["the last noise", () => click("dream-clean")]]) {
    const before = await shown();
    await how();
    let after = before;
    for (let k = 0; k < 60 && after === before; k++) await sleep(100), after = await shown();
    check(`dreams: ${what} is visible while they are paused`, before !== after);
  }
  await click("dream-clean"), await click("dream-run"), await sleep(300);
  const resumed = await shown();
  let next = resumed;
  for (let k = 0; k < 200 && next === resumed; k++) await sleep(100), next = await shown();
  check("dreams: and they go on", next !== resumed);
  await js("(() => { const k = document.getElementById('dream-kind'); " +
    "k.value = 'or', k.onchange(); })()");
  await sleep(400);
  check("dreams: the URL contains the kind", /kind=or/.test(await js("location.hash")),
    await js("location.hash"));
  for (let k = 0; k < 20; k++) await click("dream-run");
  await sleep(300);
  check("dreams: what was asked often is not kept", await js("worker('chains').asked.size") < 4,
    await js("worker('chains').asked.size"));
  await open("#dream?step=0&noise=1e30&temp=1e30");
  check("dreams: the URL goes as far as the sliders", await js(`["step", "noise", "temp"]
    .map((name) => $("dream-" + name + "-out").textContent).join()`) === "0.00032,0.4,10",
    await js("location.hash"));
}

async function fool() {
  const label = (net) => `document.querySelector('[data-net="${net}"]').dataset.label`;
  await open("#fool");
  check("fool it: one who comes for the first time sees a zero attacked, and one network fooled",
    await until(`${label(0)} === "0" && ${label(1)} === "9"`, 20),
    await js(`${label(0)} + ${label(1)}`));
  const four = await canvas("fool-digit");
  await click("fool-another");
  check("fool it: another digit", await until(
    `document.getElementById("fool-digit").toDataURL() !== "${four}"`, 10));
  await open("#fool?digit=41&eps=0.3&steps=10&norm=inf");
  await until(`${label(0)} && ${label(1)}`);
  check("fool it: the plain classifier no longer says four", await js(label(1)) !== "4",
    await js(label(1)));
  check("fool it: the verdict is Fooled", /Fooled/.test(
    await js("document.querySelector('[data-net=\"1\"]').textContent")));
  const far = (v) => js(`(() => { const e = document.getElementById("fool-eps");
    e.value = ${v}, e.oninput(); })()`);
  await far(0);
  await until(`${label(0)} === "4" && ${label(1)} === "4"`);
  check("fool it: without a change, both say four", await js(`${label(0)} + ${label(1)}`) === "44");
  await far(9);
  await sleep(4000);
  await pictures("fool");
  await open("#fool?digit=8&eps=0.4&steps=10&norm=inf");
  await js(`(window.paintsChart = chart, chart = (c, all) => {
    window.curves = all.curves.map((one) => one.y), paintsChart(c, all); }, panels.fool.paint())`);
  const curves = await until("curves.every((y) => y.length === 11) && curves", 60) ??
    await js("curves");
  check("fool it: far enough, neither network is sure of anything", curves.every((y) =>
    y.length === 11 && y[0] > .5 && y.at(-1) < .01), JSON.stringify(curves));
  check("fool it: another digit has no curve at first",
    await js("(open_('fool', { digit: '41' }), curves.join())") === ",");
  await js("location.hash = '#fool?eps=0&ink=U1YuNpRD2ozW'");
  await until(`/has not changed/.test($("fool-nets").textContent) && ${label(0)} && ${label(1)}`, 20);
  check("fool it: two answers to a scrawl: without an attack neither is fooled",
    await js(`${label(0)} !== ${label(1)} && !/Fooled/.test($("fool-nets").textContent)`),
    await says("fool-nets"));
}

/* Compares the moments of chains with known ones. */
async function walk() {
  const data = async (name) => Number(await js(`$("walk").dataset.${name}`));
  async function far(hash, steps) {
    await open("#walk?rate=3000&" + hash);
    await until(`$("walk").dataset.steps >= ${steps}`, 120);
    return [Math.abs(await data("off")), await data("rhat"), await data("accepted")];
  }
  let [off, rhat, accepted] = await far("density=narrow&kind=mala&a=0.08", 4000);
  check("walk: MALA is exact, and refuses some", off < 4.5 && rhat < 1.05 && accepted > .3 &&
    accepted < .99, `${off} ${rhat} ${accepted}`);
  [off, rhat] = await far("density=narrow&kind=langevin&a=0.3", 4000);
  check("walk: Langevin's chains agree, and are wrong", off > 5 && rhat < 1.05 &&
    /agree, but are wrong/.test(await says("walk-note")), `${off} ${rhat}`);
  [off, rhat] = await far("density=banana&kind=hmc&a=0.05&leaps=10", 1500);
  check("walk: Hamiltonian Monte Carlo is exact on the banana", off < 4.5 && rhat < 1.05,
    `${off} ${rhat}`);
  [off, rhat] = await far("density=modes&kind=mala&a=0.1", 1500);
  check("walk: two modes: single chains do not cross, and R-hat shows it", rhat > 1.5, rhat);
  await pictures("walk");
  [off, rhat] = await far("density=modes&kind=tempered&a=0.15", 4000);
  check("walk: two modes: tempered chains cross", off < 4.5 && rhat < 1.1, `${off} ${rhat}`);
  await open("#walk?density=own&kind=ascent&a=0.1&rate=1000&own=150_300_450_300");
  await until('$("walk").dataset.steps >= 300', 60);
  check("walk: ascent ends on the points", await js(`(() => {
    const bins = [...$("walk").dataset.summits.split(" ")].map(Number);
    return bins.every((u) => Math.abs(Math.abs(u) - 1.5) < .1); })()`),
    await js('$("walk").dataset.summits'));
  await js("document.getElementById('walk-run').click()");
  await stroke("walk-plane", [[.5, .2], [.5, .2]]);
  check("walk: a click sets a point of one's own",
    await until("/own=150_300_450_300_\\d+_\\d+/.test(location.hash)", 5),
    await js("location.hash"));
  await open("#walk?a=9e9&rate=-1&noise=1e30");
  check("walk: the URL goes as far as the sliders", await js(`["a", "noise", "rate"].map((name) =>
    $("walk-" + name + "-out").textContent).join()`) === "1.0,2 \u221aa,1",
    await js('$("walk-noise-out").textContent'));
}

/* Returns the longest choice of each menu that is wider than the menu, less its arrow and padding. */
const cutChoices = `[...document.querySelectorAll("select")].filter((s) => s.offsetWidth).flatMap((s) => {
  const style = getComputedStyle(s), pen = document.createElement("canvas").getContext("2d");
  pen.font = style.font;
  const room = s.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - 16;
  return [...s.options].map((o) => o.text).filter((text) => pen.measureText(text).width > room);
}).join("; ")`;

/* Checks the page for a lecture hall, its widths, and links to it. */
async function shared() {
  await screen("", 1280, 720, false);
  for (const panel of ["draw", "dream", "fool", "walk", "plane"]) {
    await open("?present#" + panel), await sleep(400);
    const [high, code] = await js(`[document.documentElement.scrollHeight,
      document.querySelector("details").offsetHeight]`);
    check(`presented: ${panel} fits 1280 x 720, without its C`, high <= 720 && code === 0, high);
    await screen("", 1280, 671, false);               /* within a slide, above its bar */
    const inside = await js("document.documentElement.scrollHeight");
    check(`presented: ${panel} fits a slide`, inside <= 671, inside);
    await screen("", 1280, 720, false);
  }
  await screen("presented", 1280, 720, false);
  for (const [width, height] of [[390, 844], [768, 1024], [1280, 800], [1920, 1080]]) {
    for (const panel of ["draw", "dream", "fool", "walk", "plane"]) {
      await screen("", width, height, false);
      await open("#" + panel), await sleep(600);
      const [wide, room] = await js("[document.documentElement.scrollWidth, innerWidth]");
      check(`${panel}: fits the width of ${width}`, wide <= room, `${wide} of ${room}`);
      const cut = await js(cutChoices);
      check(`${panel}: no choice is cut off at ${width}`, cut === "", cut);
      check(`${panel}: opens at its top`, await js("scrollY") === 0, await js("scrollY"));
      for (const dark of [false, true]) {
        const theme = dark ? "dark" : "light";
        await screen(`${panel}-${width}-${theme}`, width, height, dark);
        const [least, text] = await contrast("body *");
        check(`${panel}: text has a contrast of 4.5 at ${width}, ${theme}`, least >= 4.5,
          `${least}: ${text}`);
      }
    }
  }
  await screen("", 1280, 900, false);
  await open("#draw?digit=41");
  await js("navigator.clipboard.writeText = async (text) => { window.copied = text; }");
  await click("copy"), await sleep(100);
  check("the link that is copied is that of the panel as it is",
    /digit=41/.test(await js("window.copied")), await js("window.copied"));
  const head = await js("[...document.querySelectorAll('meta')].map((m) => m.outerHTML).join()");
  check("the page describes itself to those it is sent to",
    /name="description"/.test(head) && /og:image/.test(head), head);
}

async function plane() {
  await open("#plane?world=moons");
  const data = (name) => js(`document.getElementById("plane").dataset.${name}`);
  await until("document.getElementById('plane').dataset.updates >= 40");
  const first = Number(await data("first")), t = Date.now(), u = Number(await data("updates"));
  await until("document.getElementById('plane').dataset.updates >= 300", 90);
  const ce = Number(await data("ce")), likely = Number(await data("likely")),
    alone = Number(await data("alone"));
  const rate = (await data("updates") - u) * 1000 / (Date.now() - t);
  console.log(`the plane: ${rate.toFixed(0)} updates of both a second`);
  check("the plane: the loss falls", ce < .6 * first, `${first} to ${ce}`);
  check("the plane: only the JEM knows where the points are", likely > -4 && likely > alone + 1,
    `${likely}, ${alone}`);
  await pictures("plane");
  await rests("plane");
  await js(`(() => {                              /* what the chart of the loss is drawn from */
    const paints = chart;
    window.drawn = [], $("plane-again").click();
    chart = (c, all) => { if (c.id === "plane-ce") drawn.push(all.curves[1].x); paints(c, all); };
  })()`);
  await until("drawn.some((x) => x.length > 20)", 20);
  check("the plane: begun again, nothing is left of the curve before",
    await js("drawn.every((x) => x.every((v, k) => v === k + 1))"),
    await js("JSON.stringify(drawn.find((x) => x.some((v, k) => v !== k + 1)))"));
  await click("plane-run"), await sleep(200);
  await js(`(() => {                              /* as if it had learned for long */
    const { tell } = [...worker("plane").asked.values()].filter((asked) => asked.tell).at(-1);
    const facts = Array.from({ length: 200000 }, (_, k) => [1000 + (k >> 1), 1, 1, 0, 1]);
    const view = { density: [], best: Array(4096).fill(0), sure: [], dream: [], likely: 0 };
    tell({ facts, views: [view, view], stopped: [], ms: 1, updates: 1e5 });
  })()`);
  const x = await js("drawn.at(-1)");
  check("the plane: of 100,000 updates the curve is drawn from every 64th",
    x.length > 90 && x.length <= 200 && x.every((v) => v % 64 === 0) && x.at(-1) > 98000,
    x.join(" "));
  await js("document.querySelector('[data-break=rate]').click()");
  await until("document.getElementById('plane').dataset.stopped", 90);
  check("the plane: a rate 30 times too high diverges",
    /^Diverged/.test(await says("plane-status")), await says("plane-status"));
  check("the plane: that is said, but not every update", await js(
    `document.querySelectorAll("[aria-live]").length === 1 &&
    $("said").textContent === $("plane-status").textContent`), await says("said"));
  await screen("plane-broken", 1280, 800, false);
  await js("document.querySelector('[data-break=healthy]').click()");
  check("the plane: and starts again", await until(
    "!document.getElementById('plane').dataset.stopped && " +
    "document.getElementById('plane').dataset.updates >= 20"));

  await open("#plane?world=own&right=score");
  await stroke("plane-class-1", [[.2, .3], [.5, .3]]);
  await js("document.querySelectorAll('#plane-own .chips button')[1].click()");
  await stroke("plane-class-1", [[.5, .7], [.8, .7]]);
  check("the plane: own points, score matching",
    await until("document.getElementById('plane').dataset.updates >= 60"));
  await sleep(300);
  check("the plane: they are in the URL",
    /own=\d+_\d+_0_.*_1(&|$)/.test(await js("location.hash")), await js("location.hash"));
  await screen("plane-own", 1280, 800, true);
  await click("plane-clear"), await sleep(500);
  check("the plane: without points nothing is shown of what was learned",
    /^Add points/.test(await says("plane-status")) && await says("plane-facts-1") === "" &&
    await js(`new Set(new Uint32Array($("plane-density-1").getContext("2d")
      .getImageData(0, 0, 512, 512).data.buffer)).size`) === 1,
    await says("plane-status"));
  await stroke("plane-class-0", [[.9, .5], [1.2, .5]]), await sleep(300);
  const inside = (await js("location.hash")).match(/own=([\d_]*)/)[1].split("_").map(Number);
  check("the plane: points outside of the world are not taken",
    inside.length >= 3 && inside.every((v) => v <= 600), inside.join("_"));
  await open("#plane?world=rings"), await click("tab-draw"), await sleep(1500);
  const resting = await data("updates") ?? 0;
  await sleep(700);
  check("the plane: left at once, it does not learn behind another tab",
    resting === (await data("updates") ?? 0), `${resting}, ${await data("updates")}`);
  const many = Array(599).fill("100_100_0").join("_") + "_500_500_0";
  await open("#plane?world=own&own=" + many), await sleep(200);
  check("the plane: of 600 points the last is drawn too; points of one class teach nothing",
    await js(`$("plane-class-0").getContext("2d").getImageData(427, 85, 1, 1).data.join()`) ===
      "0,114,178,255" && /^Add points/.test(await says("plane-status")),
    await says("plane-status"));
}

/* Checks that the browser keeps its own keys: zoom, back, reload. */
async function keys() {
  await open("#draw?digit=41");
  for (const at of ["#pad", "#seen", "#chains canvas", "#walk-plane", "#plane-class-0"])
    check(`keyboard: the browser's own keys in ${at}`, await js(`["ctrlKey", "altKey", "metaKey"]
      .every((own) => ["0", "ArrowLeft", "r", "1"].every((key) =>
        document.querySelector("${at}").dispatchEvent(
          new KeyboardEvent("keydown", { key, [own]: true, cancelable: true }))))`));
  await js("document.getElementById('tab-draw').focus()");
  await key("ArrowLeft");
  check("keyboard: arrows go from tab to tab, and around",
    await js("document.activeElement.id") === "tab-plane", await js("document.activeElement.id"));
}

/* Checks that errors are displayed, and stop nothing else. */
async function wrong() {
  const before = troubles.length;
  await open("#draw");
  await js("void setTimeout(() => Promise.reject(Error('on purpose')))");
  check("an error that nobody catches is shown",
    await until("/on purpose/.test(document.getElementById('trouble').textContent)", 3));
  await open("#draw?digit=80&hide=~80~____");
  await until("!document.getElementById('fill').disabled", 20);
  await js(`(() => { const chains = worker("chains"), asks = chains.ask;
    chains.ask = (kind, ...rest) => asks.call(chains, kind + " on purpose", ...rest); })()`);
  await click("fill");
  check("a question that ends in an error is over, and can be asked again",
    await until("!document.getElementById('trouble').hidden", 10) &&
    await until("!document.getElementById('fill').disabled", 3), await says("trouble"));
  check("the only errors are those made on purpose", troubles.slice(before).every((t) =>
    /on purpose|jobs\[kind\] is not/.test(t)), troubles.slice(before).join("; "));
  const whole = fs.readFileSync(page, "utf8");
  for (const [what, cut] of [
    ["half of the page", whole.slice(0, whole.length / 2)],
    ["a script that cannot be read", whole.replace("async function begin", "async funct begin")],
    ["a damaged part", whole.replace(/(id="wasm">[^]{400})[^]{4}/, "$1AAAA")]]) {
    const file = path.join(home, "damaged.html");
    fs.writeFileSync(file, cut);
    await send("Page.navigate", { url: "about:blank" });
    await send("Page.navigate", { url: "file://" + file });
    check(`${what}: the visitor is told`, await until(`(() => {
      const e = document.getElementById("trouble");
      return e && getComputedStyle(e).visibility === "visible" && e.offsetHeight > 0 &&
        (/incomplete/.test(e.textContent) || /damaged/.test(e.textContent)); })()`, 10),
      await js("document.getElementById('trouble')?.textContent"));
  }
  troubles.length = before;
}

const source = fs.readFileSync(page, "utf8");
check("one file of at most 2 MB", source.length <= 2e6, source.length);
check("nothing is left to put in", !source.includes("@@"));
await visit([story, draw, fill, dream, fool, walk, plane, shared, keys, wrong], async () => {
  const shown = await js("[...document.querySelectorAll('pre.code')]" +
    ".map((p) => p.textContent).join('')");
  const root = path.join(path.dirname(new URL(import.meta.url).pathname),
    "../../examples/playground");
  const sources = ["digits.c", "walk.c", "plane.c"].map((f) =>
    fs.readFileSync(path.join(root, f), "utf8")).join("");
  const lines = shown.split("\n").map((l) => l.trim()).filter((l) => l.includes("jem_") &&
    !l.includes("/*"));
  check("the C that is shown is the C that runs", lines.length > 20 &&
    lines.every((l) => sources.includes(l)),
    lines.find((l) => !sources.includes(l)));
});
