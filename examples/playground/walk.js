/* ---- Walk ---- */
panels.walk = (() => {
  const densities = ["narrow", "banana", "modes", "own"];         /* as in walk.c */
  const numbers = ["u \u2212 v", "v", "u", "u"];
  const moments = ["E (u \u2212 v)\u00b2", "E v\u00b2", "E u", "E u"];
  const kinds = ["ascent", "langevin", "mala", "hmc", "tempered"];
  const why = {
    ascent: "Uphill, without noise: every chain ends at a maximum, which is not a sample.",
    langevin: "x \u2190 x + a/2 \u2207\u2093 f + \u221aa N(0, I). No step is rejected, so " +
      "the error remains for chains of any length; it shrinks with a.",
    mala: "The same step, but rejected with the probability that makes the sampler exact.",
    hmc: "A frictionless path of several gradients; its end may be rejected.",
    tempered: "Every fourth chain samples p; the others are hotter, cross from mode to mode, " +
      "and swap points (pale).",
  };
  const usual = { density: "banana", kind: "langevin", a: .05, noise: 1, leaps: 10, rate: 8 };
  let now = { ...usual }, own = [-1.5, -1, -1.5, 1, 1.2, 0], grid = null, truth = null;
  let frame = null, trail = [], running = false, paused = false, cursor = null, placed = "";

  const box = (v) => (v + 3) / 6 * 512;
  const at = (x, y) => [box(x), 512 - box(y)];
  function controls() {
    $("walk-density").value = now.density, $("walk-kind").value = now.kind;
    $("walk-a").value = Math.log10(now.a), $("walk-a-out").textContent = now.a.toPrecision(2);
    $("walk-noise").value = now.noise;
    $("walk-noise-out").textContent = `${Number(now.noise.toFixed(3))} \u221aa`;
    $("walk-noise-label").hidden = now.kind !== "langevin";
    $("walk-noise-row").hidden = now.kind !== "langevin";
    $("walk-leaps-label").hidden = now.kind !== "hmc";
    $("walk-leaps").value = now.leaps, $("walk-leaps-out").textContent = now.leaps;
    $("walk-rate").value = Math.log10(now.rate);
    $("walk-rate-out").textContent = now.rate;
    $("walk-run").textContent = running ? "Pause" : "Resume";
    $("walk-own").hidden = now.density !== "own";
    $("walk-why").textContent = why[now.kind];
    sayValues();
  }
  async function place() {
    placed = JSON.stringify([now.density, own]);
    const got = await worker("walk").ask("place",
      { density: densities.indexOf(now.density), points: own, seed: 1 });
    if (!got) return;
    grid = got.grid, truth = got.truth, trail = [], frame = null;
    await how();
    run(running);
  }
  const how = () => worker("walk").ask("how",
    { kind: kinds.indexOf(now.kind), a: now.a, noise: now.noise, leaps: now.leaps });
  function run(on, once) {
    running = on, controls();
    worker("walk").ask("rate", { rate: now.rate });
    worker("walk").ask("walk", { on, once }, { tell: show, keep: true });
  }
  function rest(yes) { if (!paused && running === yes) run(!yes); }
  function show(told) {
    frame = told;
    for (let k = 0; k < told.trail.length; k += 9) trail.push(told.trail.slice(k, k + 9));
    trail = trail.slice(-40);
    paint();
  }

  /* ---- pictures ---- */
  const small = document.createElement("canvas");
  small.width = small.height = 64;
  const css = (c) => `rgb(${c.map(Math.round).join()})`;
  function heat() {
    const c = small.getContext("2d"), data = c.createImageData(64, 64);
    const well = rgb("well"), accent = rgb("accent"), most = Math.max(...grid);
    grid.forEach((v, k) => {
      const shade = mix(well, accent, .75 * Math.max(0, 1 + (v - most) / 6));
      data.data.set([...shade, 255], 4 * k);
    });
    c.putImageData(data, 0, 0);
    const to = $("walk-plane").getContext("2d");
    to.imageSmoothingEnabled = true, to.drawImage(small, 0, 0, 512, 512);
    return to;
  }
  function arrow(c, from, to, shade) {
    const angle = Math.atan2(to[1] - from[1], to[0] - from[0]);
    c.strokeStyle = c.fillStyle = shade, c.lineWidth = 3;
    c.beginPath(), c.moveTo(...from), c.lineTo(...to), c.stroke();
    if (Math.hypot(to[0] - from[0], to[1] - from[1]) < 6) return;
    c.beginPath(), c.moveTo(...to);
    for (const turn of [2.6, -2.6])
      c.lineTo(to[0] + 10 * Math.cos(angle + turn), to[1] + 10 * Math.sin(angle + turn));
    c.fill();
  }
  function dot(c, [x, y], r, fill, ring) {
    c.beginPath(), c.arc(x, y, r, 0, 7), c.fillStyle = fill, c.fill();
    c.strokeStyle = ring, c.lineWidth = 1.5, c.stroke();
  }
  function paintPlane() {
    const c = heat(), ink = colour("ink"), paper = colour("paper"), refusal = colour("refused");
    if (!frame) return;
    const tempered = now.kind === "tempered";
    for (let i = 15; i > 0; i--) {
      c.globalAlpha = tempered && i % 4 ? .35 : 1;
      dot(c, at(frame.chain[2 * i], frame.chain[2 * i + 1]), 5, paper, ink);
    }
    c.globalAlpha = 1, c.lineWidth = 2, c.strokeStyle = ink;
    c.beginPath();
    trail.forEach((step, k) => {
      if (!k) c.moveTo(...at(step[0], step[1]));
      c.lineTo(...at(step[6], step[7]));
    });
    c.stroke();
    for (const step of trail) {
      if (step[8]) continue;
      c.strokeStyle = refusal, c.setLineDash([4, 4]);
      c.beginPath(), c.moveTo(...at(step[0], step[1])), c.lineTo(...at(step[4], step[5]));
      c.stroke(), c.setLineDash([]);
      dot(c, at(step[4], step[5]), 4, refusal, refusal);
    }
    const last = trail.at(-1);
    if (last && now.rate <= 20) {
      const from = at(last[0], last[1]), up = at(last[2], last[3]), to = at(last[4], last[5]);
      const leaps = frame.path[9];
      if (leaps > 1) {
        c.strokeStyle = colour("noise"), c.lineWidth = 2, c.beginPath(), c.moveTo(...from);
        for (let k = 0; k < leaps; k++)
          c.lineTo(...at(frame.path[10 + 2 * k], frame.path[11 + 2 * k]));
        c.stroke();
      } else {
        arrow(c, from, up, colour("slope"));
        arrow(c, up, to, colour("noise"));
      }
      dot(c, to, 6, last[8] ? colour("noise") : refusal, ink);
    }
    dot(c, at(frame.chain[0], frame.chain[1]), 7, colour("slope"), ink);
    if (cursor && document.activeElement === $("walk-plane"))
      dot(c, at(...cursor), 9, "transparent", ink);
  }
  function paintHistogram() {
    const { c, w, h } = fit($("walk-histogram"), 230), floor = h - 26;
    if (!w || !truth) return;
    const seen = frame?.histogram ?? [], most = 1.25 * Math.max(...truth);
    const py = (v) => floor - Math.min(1, v / most) * (floor - 24), px = (k) => w * k / 60;
    c.fillStyle = colour("soft"), c.globalAlpha = .35;
    seen.forEach((v, k) => c.fillRect(px(k), py(v), w / 60 - 1, floor - py(v)));
    c.globalAlpha = 1, c.strokeStyle = colour("noise"), c.lineWidth = 2.5, c.beginPath();
    truth.forEach((v, k) => c.lineTo(px(k + .5), py(v)));
    c.stroke();
    const name = numbers[densities.indexOf(now.density)];
    c.fillStyle = colour("soft"), c.fillRect(0, floor, w, 1);
    c.textAlign = "left", c.fillText("\u22123", 0, h - 6);
    c.fillText(`${name}: chains (bars), truth (line)`, 0, 16);
    c.textAlign = "right", c.fillText("3", w, h - 6);
    c.textAlign = "center", c.fillText(name, w / 2, h - 6);
  }
  function paintFacts() {
    const [mean, error, known, off, tau, rhat, accepted, steps] = frame?.facts ?? [];
    const name = moments[densities.indexOf(now.density)];
    const ready = Number.isFinite(mean) && error > 0, far = Math.abs(off) > 4;
    const rows = !frame ? [] : [["steps", steps]];
    if (frame && (now.kind === "mala" || now.kind === "hmc" || now.kind === "tempered"))
      rows.push(["accepted", percent(accepted)]);
    if (ready) rows.push(
      [name, `${number(mean, 3)} \u00b1 ${error.toPrecision(2)}`],
      ["true value", number(known, 3)],
      ["off by", `<b class="${far ? "strange" : ""}">${Math.abs(off).toFixed(1)} \u03c3</b>`],
      ["correlation time \u03c4", tau.toFixed(tau < 10 ? 1 : 0)],
      ["R-hat", `<b class="${rhat > 1.05 ? "strange" : ""}">${rhat.toFixed(2)}</b>`]);
    $("walk-facts").innerHTML = rows.map(([k, v]) => `<dt>${k}</dt><dd>${v}</dd>`).join("");
    $("walk-note").textContent = frame?.ranAway
      ? "The chains diverged, and were restarted: a is too large."
      : !ready ? "" : rhat > 1.05
        ? "The chains do not agree yet: neither their mean nor its \u03c3 is reliable."
        : far ? "The chains agree, but are wrong." : "Correct, within the current error.";
    if (!running && current === "walk") say($("walk-note").textContent);
    Object.assign($("walk").dataset, { steps: steps ?? 0, off: ready ? off : "", rhat: rhat ?? "",
      accepted: accepted ?? "", tau: tau ?? "",
      summits: frame ? [...frame.chain].filter((v, k) => k % 2 === 0).map((v) => v.toFixed(2))
        .join(" ") : "" });
  }
  function paint() {
    if (!grid) return;
    paintPlane(), paintHistogram(), paintFacts();
  }
  function drop(x, y) {
    if (Math.max(Math.abs(x), Math.abs(y)) > 3) return;
    if (now.density === "own" && own.length < 24) {
      own.push(Number(x.toFixed(2)), Number(y.toFixed(2)));
      place(), writeUrl();
      return;
    }
    trail = [];
    worker("walk").ask("drop", { x, y });
    if (!running) run(false, true);
  }
  async function changed() {
    controls(), writeUrl();
    if (placed !== JSON.stringify([now.density, own])) return place();
    trail = [];
    await how();
    if (!running) run(false);
  }
  return {
    begin() {
      $("walk-density").onchange = () => { now.density = $("walk-density").value, changed(); };
      $("walk-kind").onchange = () => { now.kind = $("walk-kind").value, changed(); };
      $("walk-a").oninput = () => {
        now.a = Number((10 ** $("walk-a").value).toPrecision(2)), changed();
      };
      $("walk-noise").oninput = () => { now.noise = Number($("walk-noise").value), changed(); };
      $("walk-leaps").oninput = () => { now.leaps = Number($("walk-leaps").value), changed(); };
      $("walk-rate").oninput = () => {
        now.rate = Math.max(1, Math.round(10 ** $("walk-rate").value)), controls(), writeUrl();
        worker("walk").ask("rate", { rate: now.rate });
      };
      $("walk-langevin").onclick = () => { now.noise = 1, changed(); };
      $("walk-paper").onclick = () => { now.noise = .01 / Math.SQRT2, changed(); };
      $("walk-run").onclick = () => { paused = running, run(!running); };
      $("walk-step").onclick = () => { paused = true, run(false, true); };
      $("walk-again").onclick = place;
      $("walk-clear").onclick = () => { own = [0, 0], changed(); };
      const canvas = $("walk-plane");
      canvas.onpointerdown = (event) => {
        if (!event.button) drop(...within(event, canvas).map((v, i) => (i ? 3 - 6 * v : 6 * v - 3)));
      };
      canvas.onkeydown = (event) => {
        if (browsers(event)) return;
        const move = arrows[event.key];
        if (move) cursor = (cursor ?? [0, 0]).map((v, i) =>
          Math.min(2.9, Math.max(-2.9, v + move[i] * (i ? -.15 : .15))));
        else if (event.key === " " && cursor) drop(...cursor);
        else return;
        event.preventDefault(), paint();
      };
      canvas.onblur = () => { cursor = null, paint(); };
    },
    show(state) {
      if (Object.keys(state).length) now = { ...usual };
      if (densities.includes(state.density)) now.density = state.density;
      if (kinds.includes(state.kind)) now.kind = state.kind;
      for (const [name, lo, hi] of [["a", .001, 1], ["noise", 0, 2], ["leaps", 1, 40],
        ["rate", 1, 3000]]) {
        const v = Number(state[name]);
        if (state[name] !== undefined && Number.isFinite(v)) now[name] = Math.min(hi, Math.max(lo, v));
      }
      now.leaps = Math.floor(now.leaps), now.rate = Math.floor(now.rate);
      if (state.own) {
        const list = state.own.split("_").map((v) => Number(v) / 100 - 3);
        if (list.length > 1 && list.length < 25 && list.length % 2 === 0 &&
          list.every((v) => Math.abs(v) <= 3)) own = list;
      }
      running = !paused && !document.hidden, controls();
      if (placed !== JSON.stringify([now.density, own])) place();
      else how(), run(running);
    },
    hide() { rest(true); },
    rest, paint,
    state: () => ({ density: now.density, kind: now.kind, a: now.a,
      noise: now.kind === "langevin" ? Number(now.noise.toFixed(4)) : undefined,
      leaps: now.kind === "hmc" ? now.leaps : undefined, rate: now.rate,
      own: now.density === "own" ? own.map((v) => Math.round(100 * (v + 3))).join("_")
        : undefined }),
  };
})();
