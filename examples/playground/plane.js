/* ---- The plane ---- */
panels.plane = (() => {
  const worlds = ["moons", "circles", "gaussians", "pinwheel", "spirals", "checkerboard", "rings",
    "swiss", "own"];
  const titles = ["Two moons", "Two circles", "Eight Gaussians", "Pinwheel", "Two spirals",
    "Checkerboard", "Four rings", "Swiss roll", "Your own points"];
  /* distinguishable for deuteranopes (Okabe and Ito 2008) */
  const palette = [0x0072b2, 0xe69f00, 0x009e73, 0xd55e00, 0x56b4e9, 0xcc79a7, 0x6b6b6b, 0xf0e442]
    .map((v) => [v >> 16, v >> 8 & 255, v & 255]);
  const ways = ["alone", "cd", "score"];          /* as in plane.c */
  const wayNames = ["Classifier", "JEM, chains", "JEM, score"];
  const short = ["classifier", "chains", "score"];
  const healthy = { steps: 20, rate: 1, noise: 1, fresh: .05, l2: 0 };
  const breaks = {
    rate: [{ rate: 30 }, "The landscape changes faster than the chains can follow, becomes " +
      "steep, and the chains diverge, after about 500 updates."],
    noise: [{ noise: 0 },
      "Without noise, chains climb to a ridge and stay there: samples on thin lines."],
    one: [{ steps: 1, fresh: 1 },
      "One step from noise is still noise: f rises at the data without limit."],
    "rate-l2": [{ rate: 30, l2: .1 }, "Rate \u00d7 30 again, but adding 0.1 mean f\u00b2 to the " +
      "loss keeps the landscape flat (Du and Mordatch 2019)."],
    twenty: [{ steps: 20, fresh: 1 },
      "Twenty steps from noise reach the data; the weights of the modes remain wrong."],
    healthy: [{}, "Twenty steps, with noise, of chains that continue from update to update."],
  };
  const usual = { world: "moons", left: "alone", right: "cd", ...healthy };
  let now = { ...usual }, own = [], kind = 0,
    running = false, paused = false, round = 0;
  let points = new Float32Array(0), truth = NaN, views = null, cursor = null, why = "";
  let series = [[], []];                          /* ce, f(data) - f(sample), residual */
  let updates = 0, every = 1;                     /* updates made; updates per value of series */

  const plan = () => worker("plane").ask("plan",
    { ...now, left: ways.indexOf(now.left), right: ways.indexOf(now.right) });
  const side = (k) => (k ? now.right : now.left);
  const has = (way) => now.left === way || now.right === way;
  /* Classes with points: the networks receive only these, so that they predict no others. */
  const used = () => [...new Set(own.filter((v, i) => i % 3 === 2))].sort();
  const can = () => now.world !== "own" || used().length > 1;
  function status(text, strange) {
    $("plane-status").textContent = text;
    $("plane-status").classList.toggle("strange", Boolean(strange));
    if (current === "plane") say(running ? "" : text);
  }

  function controls() {
    $("plane-world").value = now.world;
    $("plane-left").value = now.left, $("plane-right").value = now.right;
    $("plane-own").hidden = now.world !== "own";
    $("plane-chain-knobs").hidden = !has("cd");
    for (const k of [0, 1]) $("plane-class-" + k).classList.toggle("own", now.world === "own");
    $("plane-steps").value = now.steps, $("plane-steps-out").textContent = now.steps;
    $("plane-noise").value = now.noise, $("plane-noise-out").textContent = "\u00d7 " + now.noise;
    $("plane-rate").value = Math.log10(now.rate);
    $("plane-rate-out").textContent = "\u00d7 " + Number(now.rate.toPrecision(2));
    $("plane-run").textContent = running ? "Pause" : "Resume";
    for (const button of document.querySelectorAll("[data-break]"))
      button.setAttribute("aria-pressed", button.dataset.break === now.broken);
    $("plane-why").textContent = breaks[now.broken]?.[1] ?? "";
    document.querySelectorAll("#plane-own .chips button").forEach((chip, k) => {
      chip.setAttribute("aria-pressed", k === kind);
    });
    sayValues();
  }

  async function restart() {
    const mine = ++round;
    series = [[], []], updates = 0, every = 1, why = "", paused = false, controls();
    if (!can()) {
      points = Float32Array.from(own), views = null, running = false, controls(), paint();
      worker("plane").ask("learn", { on: false });
      return status("Add points of two or more classes.");
    }
    await worker("plane").ask("learn", { on: false });
    const got = await worker("plane").ask("world", { world: worlds.indexOf(now.world), seed: 1,
      own: now.world !== "own" ? undefined
        : own.map((v, i) => (i % 3 === 2 ? used().indexOf(v) : v)), classes: used().length });
    if (!got || mine !== round) return;
    points = now.world === "own" ? Float32Array.from(own) : got.points, truth = got.truth;
    await plan();
    if (mine === round) learn(current === "plane" && !document.hidden);
  }
  function learn(on) {
    const mine = round;                            /* messages of older runs are ignored */
    running = on && can(), controls();
    worker("plane").ask("learn", { on: running, once: !on && can() },
      { tell: (told) => { if (mine === round) show(told); }, keep: true });
  }
  /* Pauses while the page is hidden; a run that is paused or has diverged stays so. */
  function rest(yes) { if (!paused && !why && running === yes) learn(!yes); }
  function show({ facts, views: seen, stopped, ms, updates: more }) {
    views = seen;
    facts.forEach(([t, ce, , gap, residual], k) => {
      updates = t;
      if (t % every === 0) series[k % 2].push({ t, ce, gap, residual });
    });
    while (series[1].length > 2000) {             /* an hour makes 300,000 */
      every *= 2;
      series = series.map((all) => all.filter(({ t }) => t % every === 0));
    }
    if (stopped.length) why = stopped.find((s) => s) ?? "stopped", running = false, controls();
    if (updates) {
      const speed = more ? `, ${(1000 * more / ms).toFixed(0)} a second` : "";
      status(why ? `Diverged after ${updates} updates.`
        : `${updates} updates${speed}`, why);
    }
    paint();
  }

  /* ---- pictures ---- */
  const small = document.createElement("canvas");
  small.width = small.height = 64;
  /* shades: a table of colours; which(k): the index for cell k */
  function image(canvas, shades, which) {
    const c = small.getContext("2d"), data = c.createImageData(64, 64);
    for (let k = 0; k < 4096; k++) {
      const shade = shades[which(k)];
      for (let i = 0; i < 3; i++) data.data[4 * k + i] = shade[i];
      data.data[4 * k + 3] = 255;
    }
    c.putImageData(data, 0, 0);
    const to = canvas.getContext("2d");
    to.imageSmoothingEnabled = true, to.imageSmoothingQuality = "high";
    to.drawImage(small, 0, 0, 512, 512);
    return to;
  }
  function dot(c, x, y, r, fill, ring) {
    c.beginPath(), c.arc((x + 3) / 6 * 512, (3 - y) / 6 * 512, r, 0, 7);
    c.fillStyle = fill, c.fill();
    if (ring) c.strokeStyle = ring, c.lineWidth = 2, c.stroke();
  }
  const css = (c) => `rgb(${c.map(Math.round).join()})`;
  function paint() {
    const paper = rgb("paper"), ink = rgb("ink"), accent = rgb("accent"), well = rgb("well");
    const heat = Array.from({ length: 101 }, (_, k) => (k < 70 ? mix(well, accent, k / 70)
      : mix(accent, ink, (k - 70) / 40)));        /* of log p from -6 to .3 */
    const tints = palette.flatMap((c) =>
      Array.from({ length: 51 }, (_, k) => mix(paper, c, .45 * k / 50)));
    for (let k = 0; k < 2; k++) {
      const view = views?.[k];
      const above = image($("plane-density-" + k), heat, (i) =>
        (view ? Math.round(100 * Math.min(1, Math.max(0, (view.density[i] + 6) / 6.3))) || 0 : 0));
      if (view) for (let i = 0; i < view.dream.length; i += 2)
        dot(above, view.dream[i], view.dream[i + 1], 4.5, css(paper), css(ink));
      const kinds = now.world === "own" ? used() : [0, 1, 2, 3, 4, 5, 6, 7];
      const below = image($("plane-class-" + k), tints, (i) =>
        (view ? 51 * (kinds[view.best[i]] ?? 0) + (Math.round(50 * view.sure[i]) || 0) : 0));
      for (let i = 0; i < points.length; i += 3)
        dot(below, points[i], points[i + 1], 5, css(palette[points[i + 2]]), css(paper));
      if (cursor && document.activeElement === $("plane-class-" + k))
        dot(below, cursor[0], cursor[1], 8, "transparent", css(ink));
      $("plane-facts-" + k).textContent = view && updates
        ? `mean log p ${view.likely < -99 ? "below \u221299" : number(view.likely, 2)}` +
          (Number.isFinite(truth) ? `, truth ${number(truth, 2)}` : "")
        : "";
    }
    colourBar(heat), curves();
  }
  function colourBar(heat) {
    const { c, w } = fit($("plane-bar"), 34);
    for (let k = 0; k < 101; k++)
      c.fillStyle = css(heat[k]), c.fillRect(w * k / 101, 0, w / 101 + 1, 12);
    c.fillStyle = colour("soft"), c.textBaseline = "alphabetic";
    [["log p(x): \u22126 or less", "left", 0], ["0.3 or more", "right", w]]
      .forEach(([text, side, x]) => { c.textAlign = side, c.fillText(text, x, 29); });
  }
  function curves() {
    const end = Math.max(100, updates);
    const smooth = (list, name) => {             /* at most 200 points, each a mean */
      const every = Math.max(1, Math.ceil(list.length / 200)), x = [], y = [];
      for (let k = 0; k + every <= list.length; k += every) {
        x.push(list[k].t);
        y.push(list.slice(k, k + every).reduce((s, v) => s + v[name], 0) / every);
      }
      return { x, y };
    };
    const curve = (k, name) => ({ ...smooth(series[k], name), name: short[ways.indexOf(side(k))],
      colour: colour(k ? "accent" : "minus") });
    const both = [0, 1].map((k) => curve(k, "ce"));
    const of = (way, name) => [0, 1].filter((k) => side(k) === way).map((k) => curve(k, name));
    const x = { xName: `${end} updates`, x0: 0, x1: end };
    chart($("plane-ce"), { ...x, title: "\u2212log p(y|x)", y0: 0, y1: 2, curves: both });
    $("plane-cd").hidden = !has("cd"), $("plane-score").hidden = !has("score");
    if (has("cd")) chart($("plane-cd"), { ...x, title: "f(data) \u2212 f(chains)", y0: -6, y1: 6,
      curves: of("cd", "gap").map((c) => ({ ...c, name: "" })) });
    if (has("score")) chart($("plane-score"), {
      ...x, title: "noise not explained by the gradient", y0: .4,
      y1: 1.2, places: 2, curves: of("score", "residual").map((c) => ({ ...c, name: "" })) });
    const first = series[1][0];
    if (first) Object.assign($("plane").dataset, {
      updates, ce: smooth(series[1], "ce").y.at(-1),
      first: first.ce, likely: views?.[1].likely, alone: views?.[0].likely, stopped: why });
  }

  /* ---- your own points ---- */
  function add(x, y) {
    if (now.world !== "own" || own.length >= 3 * 600 || Math.max(Math.abs(x), Math.abs(y)) > 3)
      return;
    own.push(Number(x.toFixed(2)), Number(y.toFixed(2)), kind);
    points = Float32Array.from(own), paint(), writeUrl();
    clearTimeout(add.timer), add.timer = setTimeout(restart, 500);
  }
  function plots() {
    for (let k = 0; k < 2; k++) {
      const canvas = $("plane-class-" + k);
      const at = (event) => within(event, canvas).map((v, i) => (i ? 3 - 6 * v : 6 * v - 3));
      let last = 0;
      draws(canvas, {
        down(event) {
          if (now.world !== "own") return false;
          add(...at(event));
        },
        drag(event) {
          if (event.timeStamp - last < 40) return;
          last = event.timeStamp;
          add(...at(event).map((v) => v + (Math.random() - .5) * .3));
        },
      });
      canvas.onkeydown = (event) => {
        if (browsers(event)) return;
        const move = arrows[event.key];
        if (move) cursor = (cursor ?? [0, 0]).map((v, i) =>
          Math.min(2.9, Math.max(-2.9, v + move[i] * (i ? -.15 : .15))));
        else if (event.key === " " && cursor) add(...cursor);
        else if (/^[1-4]$/.test(event.key)) kind = Number(event.key) - 1, controls();
        else return;
        event.preventDefault(), paint();
      };
      canvas.onblur = () => { cursor = null, paint(); };
    }
  }
  const packed = () => own.map((v, i) => (i % 3 < 2 ? Math.round((v + 3) * 100) : v)).join("_");
  function unpack(text) {
    const list = text.split("_").map(Number);
    if (list.some((v) => !Number.isFinite(v))) return [];
    return list.slice(0, Math.floor(Math.min(list.length, 1800) / 3) * 3).map((v, i) =>
      (i % 3 < 2 ? Math.min(3, Math.max(-3, v / 100 - 3))
        : Math.min(3, Math.max(0, Math.floor(v)))));
  }

  async function knob(name, value) {
    now.broken = undefined, now.fresh = healthy.fresh, now.l2 = healthy.l2;  /* without sliders */
    now[name] = value, controls(), writeUrl();
    if (can() && updates) {
      await plan();
      if (why) restart();
      else if (running) learn(true);
    } else restart();
  }
  return {
    begin() {
      $("plane-world").innerHTML = worlds.map((w, k) =>
        `<option value="${w}">${titles[k]}</option>`).join("");
      document.querySelector("#plane-own .chips").innerHTML = [0, 1, 2, 3].map((k) =>
        `<button aria-label="Class ${k + 1}">
        <i style="background:${css(palette[k])}"></i></button>`).join("");
      document.querySelectorAll("#plane-own .chips button").forEach((chip, k) => {
        chip.onclick = () => { kind = k, controls(); };
      });
      $("plane-clear").onclick = () => { own = [], restart(), writeUrl(); };
      $("plane-run").onclick = () => {
        if (why || !updates) restart();
        else paused = running, learn(!running);
      };
      $("plane-again").onclick = restart;
      $("plane-world").onchange = () => {
        now.world = $("plane-world").value, restart(), writeUrl();
      };
      for (const name of ["left", "right"]) {
        $("plane-" + name).innerHTML = ways.map((w, k) =>
          `<option value="${w}">${wayNames[k]}</option>`).join("");
        $("plane-" + name).onchange = () => {
          now[name] = $("plane-" + name).value, restart(), writeUrl();
        };
      }
      $("plane-steps").oninput = () => knob("steps", Number($("plane-steps").value));
      $("plane-noise").oninput = () => knob("noise", Number($("plane-noise").value));
      $("plane-rate").oninput = () => knob("rate",
        Number((10 ** $("plane-rate").value).toPrecision(2)));
      for (const button of document.querySelectorAll("[data-break]"))
        button.onclick = () => {
          const name = button.dataset.break;
          Object.assign(now, healthy, breaks[name][0], { broken: name });
          if (!has("cd")) now.right = "cd";
          if (now.world === "moons") now.world = "rings";          /* most visible there */
          restart(), writeUrl();
        };
      plots();
    },
    show(state) {
      const before = JSON.stringify([now, own]);
      if (Object.keys(state).length) now = { ...usual };
      if (worlds.includes(state.world)) now.world = state.world;
      if (breaks[state.broken])
        Object.assign(now, healthy, breaks[state.broken][0], { broken: state.broken });
      for (const name of ["left", "right"]) if (ways.includes(state[name])) now[name] = state[name];
      for (const [name, lo, hi] of [["steps", 1, 60], ["rate", .1, 32], ["noise", 0, 2],
        ["fresh", 0, 1], ["l2", 0, 1]]) {
        const v = Number(state[name]);
        if (state[name] !== undefined && v >= lo && v <= hi)
          now[name] = name === "steps" ? Math.floor(v) : v;
      }
      if (state.own) own = unpack(state.own);
      const same = before === JSON.stringify([now, own]);
      if (views && updates && same) paint(), learn(!why && !paused);
      else restart();
    },
    hide() { rest(true); },
    rest, paint,
    state: () => ({ world: now.world, left: now.left, right: now.right, steps: now.steps,
      rate: now.rate, noise: now.noise,
      fresh: now.fresh, l2: now.l2, broken: now.broken, own: own.length ? packed() : undefined }),
  };
})();
