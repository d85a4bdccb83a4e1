/* ---- Dream ---- */
panels.dream = (() => {
  const kinds = ["any", "class", "each", "or", "and", "not"];     /* as in digits.c */
  const first = { kind: "each", a: 7, b: 9, temp: 1, rate: 60, seed: 1 };
  let now, usual, running = false, paused = false, started = null, frame = null;

  /* Defaults of the model: see jem_net_generate_desc in jem.h. */
  function defaults() {
    return model.score ? { step: .01, noise: .1, clean: true }
      : { step: 1, noise: .01, clean: false };
  }
  /* Values of slider positions. */
  const meant = {
    step: (v) => Number((usual.step * 10 ** v).toPrecision(2)),
    noise: (v) => Number((usual.noise * v).toPrecision(3)),
    temp: (v) => Number((10 ** v).toPrecision(2)),
  };
  const tell = () => worker("chains").ask("wish", {
    kind: kinds.indexOf(now.kind), a: now.a, b: now.b,
    weight: model.weight, temperature: now.temp, step: now.step, noise: now.noise, rate: now.rate,
    clean: now.clean ? 1 : 0 });

  function controls() {
    const pair = ["or", "and", "not"].includes(now.kind);
    $("dream-kind").value = now.kind;
    $("dream-classes").hidden = !pair && now.kind !== "class";
    $("dream-b-label").hidden = !pair;
    $("dream-a").value = now.a, $("dream-b").value = now.b;
    $("dream-step").value = Math.log10(now.step / usual.step);
    $("dream-noise").value = now.noise / usual.noise;
    $("dream-temp").value = Math.log10(now.temp);
    $("dream-rate").value = now.rate;
    $("dream-step-out").textContent = now.step.toPrecision(2);
    $("dream-noise-out").textContent = Number(now.noise.toPrecision(2));
    $("dream-temp-out").textContent = now.temp.toPrecision(2);
    $("dream-rate-out").textContent = now.rate;
    $("dream-clean").checked = now.clean;
    $("dream-clean-label").hidden = !model.score;
    $("dream-run").textContent = running ? "Pause" : "Resume";
    sayValues();
  }
  function changed() { controls(), tell(), look(), writeUrl(); }
  /* Requests the current state of paused chains, to show a change. */
  const look = () => {
    if (!running) worker("chains").ask("dream", { on: false }, { tell: show, keep: true });
  };

  function show(told) {
    frame = told, paint();
    $("dream-speed").textContent = told.diverged
      ? "The chains diverged, and were restarted from noise."
      : `${told.steps} steps` +
      (told.rate ? `, ${told.rate.toFixed(0)} a second` : "");
    Object.assign($("chains").dataset, { steps: told.steps, rate: told.rate.toFixed(1),
      sure: Array.from({ length: 10 }, (_, k) =>
        Math.max(...told.chance.subarray(10 * k, 10 * k + 10)).toFixed(2)).join(" ") });
  }
  function paint() {
    if (!frame) return;
    [...$("chains").children].forEach((figure, k) => {
      const chance = frame.chance.subarray(10 * k, 10 * k + 10);
      const best = chance.indexOf(Math.max(...chance));
      drawPixels(figure.firstChild, frame.shown, 784 * k);
      figure.lastChild.innerHTML =
        `<span>${words[best]}</span> <span>${percent(chance[best])}</span>` +
        `<b>${verdicts[frame.sight[k]].name}</b>`;
      paintVerdict(figure.lastChild.lastChild, frame.sight[k]);
    });
  }
  async function run(on) {
    running = on, controls();
    if (started !== worker("chains").worker) {
      started = worker("chains").worker;
      await worker("chains").ask("fresh", { seed: now.seed });
    }
    await worker("chains").opened;
    tell(), worker("chains").ask("dream", { on: running }, { tell: show, keep: true });
  }
  /* Pauses while the page is hidden; chains that the visitor has paused stay paused. */
  function rest(yes) { if (!paused && running === yes) run(!yes); }
  function chainCanvas(k) {
    const figure = document.createElement("figure"), canvas = document.createElement("canvas");
    canvas.width = canvas.height = 28, canvas.tabIndex = 0;
    canvas.setAttribute("role", "button");
    canvas.setAttribute("aria-label",
      `Chain ${k + 1}: click to disturb it; R restarts it from noise`);
    const poke = (x, y) => {
      worker("chains").ask("poke", { which: k, x, y, size: 4.5 }, { key: "poke" + k });
      look();
    };
    const renew = () => {
      worker("chains").ask("renew", { which: k }, { key: "renew" + k });
      look();
    };
    const at = (event) => { poke(...within(event, canvas).map((v) => v * 28)); };
    draws(canvas, { down: at, drag: at });
    canvas.ondblclick = renew;
    canvas.onkeydown = (event) => {
      if (browsers(event)) return;
      if (event.key === "Enter" || event.key === " ")
        poke(8 + 12 * Math.random(), 8 + 12 * Math.random());
      else if (event.key === "r" || event.key === "R") renew();
      else return;
      event.preventDefault();
    };
    figure.append(canvas, document.createElement("figcaption"));
    return figure;
  }
  return {
    begin() {
      usual = defaults();
      now = { ...first, ...usual };
      for (let k = 0; k < 10; k++) $("chains").append(chainCanvas(k));
      for (const id of ["dream-a", "dream-b"])
        $(id).innerHTML = words.map((w, k) => `<option value="${k}">${w}</option>`).join("");
      $("dream-kind").onchange = () => { now.kind = $("dream-kind").value, changed(); };
      $("dream-a").onchange = () => { now.a = Number($("dream-a").value), changed(); };
      $("dream-b").onchange = () => { now.b = Number($("dream-b").value), changed(); };
      for (const name in meant) $("dream-" + name).oninput = () => {
        now[name] = meant[name]($("dream-" + name).value), changed();
      };
      $("dream-rate").oninput = () => { now.rate = Number($("dream-rate").value), changed(); };
      $("dream-clean").onchange = () => { now.clean = $("dream-clean").checked, changed(); };
      $("dream-default").onclick = () => {
        Object.assign(now, usual, { temp: 1, rate: 60 }), changed();
      };
      $("dream-run").onclick = () => { paused = running, run(!running); };
      $("dream-again").onclick = async () => {
        now.seed = 1 + Math.floor(Math.random() * 1e6);
        await worker("chains").ask("fresh", { seed: now.seed });
        writeUrl();
        paused = false;
        if (!running) run(true);
      };
    },
    show(state) {
      if (Object.keys(state).length) Object.assign(now, first, usual);
      if (kinds.includes(state.kind)) now.kind = state.kind;
      for (const name of ["a", "b", "step", "noise", "temp", "rate", "seed"]) {
        const v = Number(state[name]);
        if (state[name] !== undefined && Number.isFinite(v) && v >= 0) now[name] = v;
      }
      now.a = Math.min(9, Math.floor(now.a)), now.b = Math.min(9, Math.floor(now.b));
      for (const name in meant) {                 /* within the range of the sliders */
        const { min, max } = $("dream-" + name), of = (v) => meant[name](Number(v));
        now[name] = Math.min(of(max), Math.max(of(min), now[name]));
      }
      now.rate = Math.min(120, Math.max(1, now.rate));
      if (state.clean !== undefined) now.clean = state.clean === "1";
      run(!paused && !document.hidden);
    },
    hide() { rest(true); },
    rest, paint,
    state: () => ({ kind: now.kind, a: now.a, b: now.b, step: now.step, noise: now.noise,
      temp: now.temp, rate: now.rate, seed: now.seed,
      clean: model.score ? Number(now.clean) : undefined }),
  };
})();
