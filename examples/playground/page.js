/* The page: unpacks inlined data, manages the workers, the tabs, and the state in the URL. */
const $ = (id) => document.getElementById(id);
const words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
const panels = {};                  /* each: { begin(), show(state), state(), paint() }, perhaps
                                       hide(), rest(yes) */
let parts, model, current;

function trouble(error) {
  $("trouble").hidden = false, $("trouble").classList.remove("waiting");
  $("trouble").textContent = "Error: " + (error?.message ?? error);
  console.error(error);
}
/* Announces results to screen readers: final ones, not those that change many times a second. */
function say(text) { if ($("said").textContent !== text) $("said").textContent = text; }
/* Gives sliders the text that is displayed beside them, instead of their positions. */
function sayValues() {
  for (const shown of document.querySelectorAll("output[id$='-out']"))
    $(shown.id.slice(0, -4))?.setAttribute("aria-valuetext", shown.textContent);
}
addEventListener("error", (event) => trouble(event.error ?? event.message));
addEventListener("unhandledrejection", (event) => trouble(event.reason));

/* ---- inlined data: gzip in base64 ---- */
async function inlined(id) {
  const raw = Uint8Array.from(atob($(id).textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer()
    .catch(() => { throw Error("a part of this file is damaged"); });
}

/* ---- workers ---- */
class Worked {
  constructor(models) {
    this.models = models, this.asked = new Map(), this.last = 0;
    this.begin();
  }
  begin() {
    Worked.url ??= URL.createObjectURL(new Blob([$("worker").textContent],
      { type: "text/javascript" }));
    this.worker = new Worker(Worked.url);
    this.worker.onerror = (event) => trouble(event.message ?? "the worker cannot start");
    this.worker.onmessage = ({ data: { id, done, told, error } }) => {
      const asked = this.asked.get(id);
      if (told) return asked?.tell?.(told);
      if (error) trouble(error);
      if (error || !asked?.keep) this.asked.delete(id);
      asked?.resolve(error ? null : done);
    };
    this.opened = this.ask("open", { wasm: parts.wasm, models: this.models });
  }
  /* Returns the answer; null after an error, after anew(), or if a newer question replaced it: one
     with the same key, or, with keep, of the same kind. */
  ask(kind, given = {}, { tell, key, keep } = {}) {
    return new Promise((resolve) => {
      const id = ++this.last;
      for (const [old, { keep: on, kind: of }] of keep ? this.asked : [])
        if (on && of === kind)                     /* the new one reports from now on */
          this.asked.get(old).resolve(null), this.asked.delete(old);
      this.asked.set(id, { resolve, tell, keep, kind });
      this.worker.postMessage({ id, kind, key, given });
    });
  }
  /* Starts a new worker; all open questions are answered with null. */
  anew() {
    this.worker.terminate();
    for (const { resolve } of this.asked.values()) resolve(null);
    this.asked.clear();
    this.begin();
  }
}
const workers = {};
function worker(name) {
  workers[name] ??= new Worked(["plane", "walk"].includes(name) ? [] : [parts.jem]);
  return workers[name];
}

/* ---- the URL: #panel?name=value&... ---- */
function readUrl() {
  const [name, rest] = location.hash.slice(1).split("?");
  const known = Object.hasOwn(panels, name);
  return [known ? name : "draw", Object.fromEntries(new URLSearchParams(rest ?? ""))];
}
let urlTimer;
function writeUrl() {
  clearTimeout(urlTimer);
  urlTimer = setTimeout(() => {
    const state = Object.entries(panels[current].state()).filter(([, v]) => v !== undefined);
    const rest = new URLSearchParams(state.map(([k, v]) => [k, String(v)])).toString();
    history.replaceState(null, "", "#" + current + (rest ? "?" + rest : ""));
  }, 150);
}
function open_(name, state) {
  if (current && current !== name) panels[current].hide?.();
  current = name, say("");
  if (document.body.dataset.ready) $("trouble").hidden = true;     /* of another panel */
  for (const other of Object.keys(panels)) {
    $(other).hidden = other !== name;
    $("tab-" + other).setAttribute("aria-selected", other === name);
    $("tab-" + other).tabIndex = other === name ? 0 : -1;
  }
  panels[name].show(state ?? {});
}

/* ---- sharing, presenting ---- */
async function copyLink() {
  const link = location.href;
  try { await navigator.clipboard.writeText(link); }
  catch {                                         /* not permitted here: copy by hand */
    const field = document.createElement("textarea");
    field.value = link, document.body.append(field), field.select();
    document.execCommand("copy"), field.remove();
  }
  $("copy").textContent = "Copied";
  setTimeout(() => { $("copy").textContent = "Copy link"; }, 1500);
}
/* For projectors: large, without the C code; ?present in the URL. */
function present(on) {
  document.documentElement.classList.toggle("present", on);
  $("present").setAttribute("aria-pressed", on);
  const url = new URL(location.href);
  url.search = on ? "?present" : "";
  if (url.href !== location.href) history.replaceState(null, "", url.href);
  if (current) panels[current].paint();
}

/* ---- colours of the visitor's scheme ---- */
const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const rgb = (name) => {
  const hex = colour(name);
  return [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
};
const mix = (a, b, t) => a.map((v, k) => v + (b[k] - v) * t);

/* pixels[784] in -1..1 as ink on paper; paint(k, rgb) may change a pixel. */
function drawPixels(canvas, pixels, offset = 0, paint) {
  const context = canvas.getContext("2d"), image = context.createImageData(28, 28);
  const paper = rgb("well"), ink = rgb("ink");
  for (let k = 0; k < 784; k++) {
    let c = mix(paper, ink, Math.min(1, Math.max(0, (pixels[offset + k] + 1) / 2)));
    if (paint) c = paint(k, c);
    image.data.set([c[0], c[1], c[2], 255], 4 * k);
  }
  context.putImageData(image, 0, 0);
}
/* Signed numbers: orange below 0, blue above. */
const signed = (base, v, most) =>
  mix(base, rgb(v > 0 ? "plus" : "minus"), Math.min(1, Math.abs(v) / most));

function bars(element, chance) {
  if (element.children.length !== 10)
    element.innerHTML = words.map((w, k) => `<div><i><b></b></i>${k}</div>`).join("");
  let best = 0;
  chance?.forEach((p, k) => { if (p > chance[best]) best = k; });
  [...element.children].forEach((bar, k) => {
    bar.classList.toggle("top", Boolean(chance) && k === best);
    bar.querySelector("b").style.height = (chance ? 100 * chance[k] : 0) + "%";
  });
  element.setAttribute("aria-label", chance
    ? "p(y|x): " + words.map((w, k) => `${w} ${chance[k].toFixed(2)}`).join(", ") : "p(y|x)");
}
const percent = (p) =>
  (p > .995 && p < 1 ? ">99" : p < .005 && p > 0 ? "<1" : (100 * p).toFixed(0)) + "%";

/* Returns the direction of an arrow key, y down; undefined for other keys. */
const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/* Verdicts of digits.c. share: the fraction of known digits that are less typical; reason: "", or a
   text of jem_reason_name. */
const verdicts = [
  { name: "familiar", says: (share) => `Familiar: ${share} of known digits are less typical.` },
  { name: "odd", says: (share, reason) => "Odd" + (reason && " (" + reason + ")") +
    `: only ${share} of known digits are less typical.` },
  { name: "strange", says: (share, reason) => "Strange: unlike all training images" +
    (reason && " (" + reason + ")") + `. ${share} of known digits are less typical.` },
  { name: "unknown", says: () => "This network is not calibrated." },
];
function paintVerdict(element, verdict) {
  for (const { name } of verdicts) element.classList.toggle(name, verdicts[verdict]?.name === name);
}

/* Keys of the browser: Ctrl+0, Alt and an arrow. */
const browsers = (event) => event.ctrlKey || event.altKey || event.metaKey;

/* Returns the position of an event in a canvas, 0..1. */
function within(event, canvas) {
  const box = canvas.getBoundingClientRect();
  return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
}

/* Handles drawing with a pointer on a canvas: calls down(event) first, which may return false to
   decline, then drag(event) and up(mistaken). One pointer draws at a time: a second finger or the
   palm would continue the line elsewhere. A pen replaces a palm that touched first: its line is
   mistaken. */
function draws(canvas, { down, drag, up }) {
  let held, pen;
  const lift = (mistaken) => { held = undefined, up?.(mistaken); };
  canvas.onpointerdown = (event) => {
    const palm = held !== undefined && event.pointerType === "pen" && !pen;
    if (event.button || (held !== undefined && !palm)) return;
    if (palm) lift(true);
    if (down(event) === false) return;
    held = event.pointerId, pen = event.pointerType === "pen";
    event.preventDefault(), canvas.setPointerCapture(held);
  };
  canvas.onpointermove = (event) => { if (event.pointerId === held) drag(event); };
  canvas.onpointerup = canvas.onpointercancel = canvas.onlostpointercapture = (event) => {
    if (event.pointerId === held) lift(false);
  };
}

/* Resizes a canvas to its size on the screen; coordinates are CSS pixels. */
function fit(canvas, h) {
  const w = canvas.parentElement.clientWidth && canvas.clientWidth, dots = devicePixelRatio || 1;
  canvas.style.height = h + "px";
  canvas.width = Math.round(w * dots), canvas.height = Math.round(h * dots);
  const c = canvas.getContext("2d");
  c.scale(dots, dots), c.font = "15px system-ui, sans-serif";
  return { c, w, h };
}
/* A chart of curves: [{ x, y, colour, name }], x ascending. */
function chart(canvas, { title, curves, x0, x1, y0, y1, xName, at, places = 1 }) {
  const { c, w, h } = fit(canvas, 170), left = 44, right = w - 6, top = 30, bottom = h - 26;
  if (!w) return;
  const px = (x) => left + (x - x0) / (x1 - x0) * (right - left);
  const py = (y) => bottom - (Math.min(y1, Math.max(y0, y)) - y0) / (y1 - y0) * (bottom - top);
  c.fillStyle = colour("soft"), c.strokeStyle = colour("line"), c.textBaseline = "middle";
  c.textAlign = "right";
  for (const y of [y0, (y0 + y1) / 2, y1]) {
    c.beginPath(), c.moveTo(left, py(y)), c.lineTo(right, py(y)), c.stroke();
    c.fillText(number(y, places), left - 6, py(y));
  }
  c.textBaseline = "alphabetic", c.fillText(xName, right, h - 6);
  c.textAlign = "left", c.fillText(x0, left, h - 6);
  if (title) c.fillText(title, 0, 12);
  let from = right;
  c.textAlign = "right", c.lineJoin = "round";
  for (const { x, y, colour: shade, name } of [...curves].reverse()) {
    c.strokeStyle = c.fillStyle = shade, c.lineWidth = 2;
    c.beginPath();
    for (let k = 0; k < x.length; k++) c.lineTo(px(x[k]), py(y[k]));
    c.stroke();
    if (name) c.fillText(name, from, 12), from -= c.measureText(name).width + 14;
  }
  if (at !== undefined) {
    c.strokeStyle = colour("soft"), c.lineWidth = 1, c.setLineDash([4, 4]);
    c.beginPath(), c.moveTo(px(at), top), c.lineTo(px(at), bottom), c.stroke();
  }
}
const number = (v, places) => v.toFixed(places).replace("-", "\u2212");

/* Comments and keywords. */
function colourCode() {
  const marks =
    /(\/\*[^]*?\*\/)|\b(static|const|int|float|double|void|for|if|else|return|struct|typedef)\b/g;
  for (const pre of document.querySelectorAll("pre.code"))
    pre.innerHTML = pre.innerHTML.trim().replace(marks, (all, comment) =>
      `<span class="${comment ? "c" : "k"}">${all}</span>`);
}

async function begin() {
  try {
    if (!window.DecompressionStream || !window.WebAssembly)
      throw Error("this page requires a browser of 2023 or later");
    const [wasm, jem] = await Promise.all(["wasm", "jem"].map(inlined));
    parts = { wasm, jem };
    model = await worker("answers").opened;
    if (!model) return;                            /* the error is displayed */
    $("speed").textContent = model.isa === "wasm" ? "" : "(without SIMD: slow)";
    const tabs = Object.keys(panels);
    tabs.forEach((name, k) => {
      $("tab-" + name).onclick = () => { open_(name), writeUrl(); };
      $("tab-" + name).onkeydown = (event) => {
        const to = k + tabs.length + (arrows[event.key]?.[0] ?? 0);
        if (to === k + tabs.length || browsers(event)) return;
        $("tab-" + tabs[to % tabs.length]).click(), $("tab-" + current).focus();
      };
    });
    await $("digits").decode();
    colourCode();
    $("copy").onclick = copyLink;
    $("present").onclick = () =>
      present(!document.documentElement.classList.contains("present"));
    present(new URLSearchParams(location.search).has("present"));
    for (const panel of Object.values(panels)) panel.begin();
    open_(...readUrl());
    onhashchange = () => open_(...readUrl());
    document.onvisibilitychange = () => panels[current].rest?.(document.hidden);
    dark.addEventListener("change", () => panels[current].paint());
    addEventListener("resize", () => panels[current].paint());
    $("trouble").hidden = true;
    scrollTo(0, 0);                                /* not to the panel of the URL */
    document.body.dataset.ready = "yes";
    parts.plain = inlined("plain").then((bytes) =>                 /* needed later, if at all */
      worker("answers").ask("load", { which: 1, bytes }));
  } catch (error) { trouble(error); }
}
