/* The slides in a real browser: node slides.mjs SLIDES.html FOLDER [PART...], with playground.html
   beside SLIDES.html. A screenshot of each slide goes to FOLDER. */
import fs from "node:fs";
import path from "node:path";
import { check, click, contrast, folder, js, key, open, page, says, screen, send, sleep, visit }
  from "./browser.mjs";

/* Every slide, at six sizes, in light and dark at four of them: nothing is cut off. */
async function sizes() {
  for (const [width, height, only] of [[1280, 720], [1920, 1080], [768, 1024], [390, 844],
    [1024, 768, "light"], [1366, 768, "light"]]) {
    for (const dark of only ? [false] : [false, true]) {
      const theme = dark ? "dark" : "light";
      await screen("", width, height, dark);
      await open("#1");
      const n = await js("all.length"), wrong = [], small = [], faint = [];
      for (let k = 0; k < n; k++) {
        await js(`show(${k})`), await sleep(60);
        const [wide, high, least] = await js(`(() => { const e = document.documentElement;
          const texts = [...all[${k}].querySelectorAll(
            "p, dt, dd, pre, summary, a, figcaption")];
          const sizes = texts.map((t) => parseFloat(getComputedStyle(t).fontSize));
          return [e.scrollWidth, e.scrollHeight, Math.min(...sizes)]; })()`);
        const [worst, text] = await contrast("section.shown *, #bar *");
        if (wide > width || (width > 1000 && high > height)) {
          wrong.push(`${k + 1}: ${wide} x ${high}`);
        }
        if (least < 16) small.push(k + 1);
        if (worst < 4.5) faint.push(`${k + 1}: ${worst}, ${text}`);
        await screen(`slide-${width}-${theme}-${String(k + 1).padStart(2, "0")}`, width, height,
          dark);
      }
      const at = `at ${width} x ${height}, ${theme}`;
      check(`slides: all ${n} fit, ${at}`, n > 15 && !wrong.length, wrong.join("; "));
      check(`slides: no text below 16 pixels, ${at}`, !small.length, small.join(" "));
      check(`slides: text has a contrast of 4.5, ${at}`, !faint.length, faint.join("; "));
    }
  }
  await screen("", 1280, 720, false);
}

/* Every slide with its answer open, at the sizes of projectors: title, links and answer are seen. */
async function answers() {
  for (const [width, height] of [[1280, 720], [1920, 1080], [1024, 768], [1366, 768]]) {
    await screen("", width, height, false);
    await open("#1");
    const n = await js("all.length"), wrong = [];
    for (let k = 1; k < n; k++) {
      await js(`show(${k})`), await key("a", "KeyA"), await sleep(60);
      const trouble = await js(`(() => { const s = all[${k}], e = document.documentElement;
        const bar = document.getElementById("bar").getBoundingClientRect().top;
        const place = (what) => s.querySelector(what).getBoundingClientRect();
        const sizes = [...s.querySelectorAll("p, dt, dd, summary, a")]
          .map((t) => parseFloat(getComputedStyle(t).fontSize));
        return [!s.querySelector("details").open && "closed",
          (e.scrollHeight > innerHeight || e.scrollWidth > innerWidth) &&
            e.scrollWidth + " x " + e.scrollHeight, place("h2").top < 0 && "title",
          Math.max(place("details").bottom, place(".links").bottom) > bar && "behind the bar",
          place("img").width < .25 * innerWidth && "picture of " + place("img").width,
          Math.min(...sizes) < 16 && "letters"].filter(Boolean).join(", "); })()`);
      if (trouble) wrong.push(`${k + 1}: ${trouble}`);
      await screen(`slide-${width}-open-${String(k + 1).padStart(2, "0")}`, width, height, false);
    }
    check(`slides: all fit with their answers, at ${width} x ${height}`, !wrong.length,
      wrong.join("; "));
  }
  await screen("", 1280, 720, false);
}

async function contents() {
  await open("#1");
  check("slides: each has a picture that loads, a formula, a question and an answer", await js(`
    all.slice(1).every((s) => s.querySelector("img").naturalWidth > 100 &&
      s.querySelector("img").alt && s.querySelector(".formula").textContent.trim().length > 10 &&
      /[?.]$/.test(s.querySelector(".question").textContent.trim()) &&
      s.querySelector("details").textContent.length > 40)`),
    await js(`all.slice(1).filter((s) => !s.querySelector("details")).map((s) =>
      s.dataset.program).join()`));
  check("slides: a caption explains each picture", await js(`
    all.slice(1).every((s) => s.querySelector("figcaption").textContent.length > 20 &&
      s.querySelector("figcaption").textContent === s.querySelector("img").alt)`));
  const captions = await js('all.map((s) => s.querySelector("figcaption")?.textContent)');
  check("slides: that of a film is its own", captions.some((text) =>
    text?.startsWith("A film shows 300 updates: ")), captions.join("; "));
  const parts = await js('[...document.querySelectorAll("dd")].map((dd) => dd.textContent)');
  check("slides: a formula's general remark is a row of its own", parts.every((text) =>
    !/arXiv/.test(text)), parts.find((text) => /arXiv/.test(text)));
  check("slides: answers are folded", await js(
    'document.querySelectorAll("details[open]").length === 0'));
  const links = await js('[...document.querySelectorAll("a.live")].map((a) => ' +
    'a.getAttribute("href").match(/^playground.html#(\\w+)/)?.[1])');
  check("slides: live links lead into panels", links.length > 12 && links.every((panel) =>
    ["draw", "dream", "fool", "walk", "plane"].includes(panel)), links.join(" "));
  const lead = (program) => js(`[...document.querySelectorAll('[data-program="${program}"] a.live')]
    .map((a) => a.getAttribute("href").split(/[#&]/).pop()).join(" ")`);
  const broken = await lead("break_it"), glance = await lead("glance");
  check("slides: what the audience may break", ["rate", "noise", "one"].every((name) =>
    broken.split(" ").includes("broken=" + name)), broken);
  check("slides: the hook leads to the drawing", glance === "draw", glance);
  check("slides: one file of at most 5 MB", fs.statSync(page).size <= 5e6, fs.statSync(page).size);
  const played = await js('[...document.querySelectorAll(".film")].map((b) => b.dataset.film)');
  const known = await js("Object.keys(films)");
  check("slides: each film of the lessons is linked", known.length >= 8 &&
    known.every((film) => played.includes(film)), played.join(" "));
}

async function keyboard() {
  await open("#1");
  const at = () => says("count");
  const n = await js("all.length");
  await key("ArrowRight"), await key("PageDown");
  check("slides: keys go on", await at() === `3 / ${n}`, await at());
  check("slides: the URL knows the slide", await js("location.hash") === "#3");
  await key("ArrowLeft");
  check("slides: and back", await at() === `2 / ${n}`, await at());
  await key("End");
  check("slides: to the end", await at() === `${n} / ${n}`, await at());
  await key("ArrowRight");
  check("slides: and not beyond", await at() === `${n} / ${n}`, await at());
  await open("#3");
  check("slides: an address leads to a slide", await at() === `3 / ${n}`, await at());
  await key("a", "KeyA");
  check("slides: A shows the answer", await js('all[2].querySelector("details").open'));
  await key("a", "KeyA");
  check("slides: and hides it", !(await js('all[2].querySelector("details").open')));
  await key("z", "KeyZ");
  check("slides: Z enlarges the picture", await js(`!large.hidden && large.firstChild.offsetWidth >
    1.2 * all[2].querySelector("img").offsetWidth`));
  await screen("slide-large", 1280, 720, false);
  await key("ArrowDown");
  check("slides: where arrows scroll it", await at() === `3 / ${n}` && await js(
    "large.scrollHeight <= innerHeight || large.scrollTop > 0"));
  await key("Escape");
  check("slides: and Escape closes it", await js("large.hidden"));
  const shown = await js('all.findIndex((s) => s.querySelector(".film"))');
  await js(`show(${shown})`), await key("f", "KeyF"), await sleep(300);
  check("slides: F plays the film", await js("!large.hidden && large.firstChild.alt === 'A film' && " +
    "large.firstChild.offsetWidth > 600 && large.scrollHeight <= innerHeight"));
  await screen("slide-film", 1280, 720, false);
  await key("f", "KeyF");
  check("slides: and closes it", await js("large.hidden")), await js("show(2)");
  await key("l", "KeyL");
  check("slides: L opens a panel within the slide", await js(
    '!live.hidden && /^playground.html\\?present#/.test(live.firstChild.getAttribute("src"))'));
  await sleep(2500), await screen("slide-live", 1280, 720, false);
  await key("Escape");
  check("slides: Escape closes it", await js("live.hidden && !live.firstChild"));
  await click("on");
  check("slides: buttons do the same", await at() === `4 / ${n}`, await at());
}

async function printed() {
  const high = 612, wide = 1149;                 /* 162 x 304 mm, in CSS pixels */
  await screen("", wide, high, false);
  for (const answers of ["folded", "open"]) {
    await open("#1");
    await js(`all.forEach((s) => s.querySelector("details")?.toggleAttribute("open",
      ${answers === "open"}))`);
    await send("Emulation.setEmulatedMedia", { media: "print" });
    const cut = await js(`all.flatMap((s, k) => s.scrollHeight > ${high} + 1 ||
      s.scrollWidth > ${wide} ? [k + 1 + ": " + s.scrollWidth + " x " + s.scrollHeight] : [])`);
    check(`slides: nothing is cut off in print, answers ${answers}`, !cut.length, cut.join("; "));
    const { data } = await send("Page.printToPDF", { preferCSSPageSize: true });
    const pages = Buffer.from(data, "base64").toString("latin1").match(/\/Type\s*\/Page\b/g);
    check(`slides: a page each in print, answers ${answers}`,
      pages?.length === await js("all.length"), pages?.length);
    fs.writeFileSync(path.join(folder, `slides-${answers}.pdf`), Buffer.from(data, "base64"));
    await send("Emulation.setEmulatedMedia", { media: "" });
  }
}

await visit([contents, sizes, answers, keyboard, printed]);
