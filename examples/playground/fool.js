/* ---- Fool it ---- */
panels.fool = (() => {
  const names = ["JEM", "Plain classifier"], order = [1, 0];      /* nets as in digits.c; shown */
  const usual = { eps: .2, steps: 10, norm: "inf" }, now = { ...usual };
  const LEVELS = 10;
  let round = 0, results = [], curve = [[], []];
  let first = [];                                 /* answer of each network without an attack */

  const most = () => (now.norm === "inf" ? .4 : 4);
  const seen = () => panels.draw.answer()?.seen;

  function controls() {
    $("fool-eps").value = Math.round(20 * now.eps / most());
    $("fool-eps-out").textContent = now.eps.toFixed(now.norm === "inf" ? 2 : 1);
    $("fool-steps").value = now.steps, $("fool-steps-out").textContent = now.steps;
    $("fool-norm").value = now.norm;
    sayValues();
  }
  const ask = (which, eps, key, on = 0) => worker("answers").ask("fool", {
    seen: seen(), which, label: first[which] ?? 0,
    eps, l2: now.norm === "2" ? 1 : 0, steps: now.steps, on }, { key });

  /* Ends the current round, and discards its results. */
  function forget() { round++, results = [], curve = [[], []], first = []; }
  async function attack() {
    forget(), controls();
    const mine = round;
    if (!seen()) return paint();
    const loaded = await parts.plain;             /* null after an error, which is displayed */
    if (!loaded || mine !== round || !seen()) return;
    await Promise.all(order.map(async (which) => {
      const before = await ask(which, 0, "first" + which);
      if (!before || mine !== round) return;
      first[which] = before.label;
      const got = await ask(which, now.eps, "fool" + which);
      if (got && mine === round) results[which] = got, paint();
    }));
    if (order.some((which) => first[which] === undefined)) return;
    if (mine === round && current === "fool" && order.every((which) => results[which]))
      say(order.map((which) => `${names[which]}: ${words[results[which].label]}`).join("; "));
    for (let k = 0; k <= LEVELS; k++)             /* then the curve, a point at a time */
      for (const which of order) {
        if (mine !== round || current !== "fool") return;
        const got = await ask(which, most() * k / LEVELS, "curve", 1);
        if (!got || mine !== round) return;
        const p = got.chance[first[which]];
        /* what a smaller distance allows, a larger one does, too */
        curve[which].push(Math.min(p, curve[which].at(-1) ?? 1)), paintCurve();
      }
  }

  function paintCurve() {
    const x = (list) => list.map((v, k) => most() * k / LEVELS);
    chart($("fool-curve"), { x0: 0, x1: most(), y0: 0, y1: 1, at: now.eps,
      xName: (now.norm === "inf" ? "largest change of a pixel, up to " : "L2 distance, up to ") +
        most(),
      curves: [{ x: x(curve[1]), y: curve[1], colour: colour("minus"), name: names[1] },
        { x: x(curve[0]), y: curve[0], colour: colour("accent"), name: names[0] }] });
  }
  function paint() {
    const base = seen();
    $("fool-nets").hidden = !base;
    drawPixels($("fool-digit"), base ?? new Float32Array(784).fill(-1));
    for (const which of order) {
      const got = results[which], card = $("fool-nets").querySelector(`[data-net="${which}"]`);
      const [found, change] = card.querySelectorAll("canvas");
      const shown = got?.found ?? base;
      if (!base) continue;
      drawPixels(found, shown);
      drawPixels(change, new Float32Array(784).fill(-1), 0, (k, c) =>
        signed(c, shown[k] - base[k], .6));
      const fooled = got && got.label !== first[which];
      const label = card.querySelector(".verdict");
      label.textContent = got ? `${words[got.label]}, ${percent(got.p)}` : "\u2026";
      label.classList.toggle("strange", Boolean(fooled));
      card.querySelector(".note").textContent = !got ? "" : fooled
        ? `Fooled: without the attack, the answer was ${words[first[which]]}.`
        : "The answer has not changed.";
      const density = card.querySelector(".density");
      density.textContent = !got ? "" : which === 1
        ? "Its density was not trained." : `Familiarity: ${verdicts[got.verdict].name}.`;
      paintVerdict(density, which === 0 ? got?.verdict : undefined);
      bars(card.querySelector(".bars"), got?.chance);
      card.dataset.label = got?.label ?? "";
    }
    paintCurve();
  }
  function changed() { attack(), writeUrl(); }

  return {
    attack,
    begin() {
      $("fool-nets").innerHTML = order.map((which) => `<div class="card" data-net="${which}">
        <h2>${names[which]}</h2><div class="pair">
        <figure><canvas class="pixels" width="28" height="28" role="img"
          aria-label="The picture after the attack"></canvas>
        <figcaption>attacked</figcaption></figure>
        <figure><canvas class="pixels" width="28" height="28" role="img"
          aria-label="The change"></canvas>
        <figcaption>the change</figcaption></figure></div>
        <p class="verdict"></p><p class="note"></p><p class="density"></p>
        <div class="bars small" role="img" aria-label="p(y|x)"></div></div>`).join("");
      $("fool-eps").oninput = () => { now.eps = most() * $("fool-eps").value / 20, changed(); };
      $("fool-steps").oninput = () => { now.steps = Number($("fool-steps").value), changed(); };
      $("fool-norm").onchange = () => {
        now.norm = $("fool-norm").value, now.eps = now.norm === "inf" ? .2 : 1, changed();
      };
      $("fool-draw").onclick = () => { open_("draw"), writeUrl(); };
      $("fool-another").onclick = () => panels.draw.heldOut();
    },
    show(state) {
      panels.draw.setDrawing(state);
      if (Object.keys(state).length) Object.assign(now, usual);
      if (["inf", "2"].includes(state.norm)) now.norm = state.norm;
      if (state.eps === undefined && state.norm === "2") now.eps = 1;
      const eps = Number(state.eps), steps = Number(state.steps);
      if (state.eps !== undefined && eps >= 0) now.eps = Math.min(eps, most());
      if (state.steps !== undefined && steps >= 1) now.steps = Math.min(40, Math.floor(steps));
      now.eps = Math.min(now.eps, most());
      forget(), controls(), paint();              /* not the results of another digit */
      const { ink, digit } = panels.draw.drawing();
      if (ink === undefined && digit === undefined) panels.draw.setDrawing({ digit: 2 });
      panels.draw.ask();
    },
    hide() { round++; },
    paint,
    state: () => ({ ...panels.draw.drawing(), eps: Number(now.eps.toFixed(3)), steps: now.steps,
      norm: now.norm }),
  };
})();
