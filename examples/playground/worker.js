/* A worker: an instance of the module, and the requests of the page. Of waiting questions with the
   same key (by default their kind) only the newest is answered. Chains and training take a few
   steps at a time, so that questions arrive in between; `fill` blocks the worker until it ends. */
"use strict";
let C, onProgress = () => {};
const waiting = new Map();

const floats = (at, n) => new Float32Array(C.memory.buffer, at, n);
const copy = (at, n) => floats(at, n).slice();
function text(at) {
  const bytes = new Uint8Array(C.memory.buffer, at);
  return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
}
function must(ok, what) {
  if (!ok) throw Error(what + ": " + text(C.problem()));
}
const [SEEN, SLOPE, HIDDEN, CHANCE, FOUND, , SHOWN, RESULT, STROKE, SIGHT] = Array(10).keys();
const [DENSITY, BEST, SURE, POINTS, FACTS, OWN, DREAM] = Array(7).keys();
const N = 784;

function answered(extra) {
  const [label, p, logp, familiar, verdict, reason] = copy(C.place(RESULT), 6);
  return {
    label, p, logp, familiar, verdict, reason: text(C.reason_name(reason)),
    chance: copy(C.place(CHANCE), 10), ...extra,
  };
}

const jobs = {
  async open({ wasm, models }) {
    const page = { progress: (done) => onProgress(done) };
    C = (await WebAssembly.instantiate(wasm, { page })).instance.exports;
    if (!C.start()) throw Error("no memory");
    models.forEach((bytes, which) => jobs.load({ which, bytes }));
    const opened = { isa: text(C.speed_name()) };
    if (models.length) {
      opened.score = C.has_score();
      opened.weight = C.usual_weight();
    }
    return opened;
  },
  load({ which, bytes }) {
    const at = C.room(bytes.byteLength);
    if (!at) throw Error("model: no memory");
    new Uint8Array(C.memory.buffer, at).set(new Uint8Array(bytes));
    const ok = C.load_net(which, at, bytes.byteLength);
    C.give_back(at);
    must(ok, "model");
  },

  /* points: x, y, pen; or pixels */
  see({ points, pixels }) {
    if (pixels) floats(C.place(SEEN), N).set(pixels);
    else {
      floats(C.place(STROKE), points.length).set(points);
      C.centre(points.length / 3);
    }
    const start = performance.now();
    must(C.answer(), "answer");
    return answered({
      seen: copy(C.place(SEEN), N), slope: copy(C.place(SLOPE), N), ms: performance.now() - start,
    });
  },
  fool({ seen, which, label, eps, l2, steps, on }) {
    floats(C.place(SEEN), N).set(seen);
    must(C.fool(which, label, eps, l2, steps, on), "attack");
    return answered({ found: copy(C.place(FOUND), N) });
  },
  fill({ seen, hidden, ways, seed }, tell) {
    floats(C.place(SEEN), N).set(seen);
    floats(C.place(HIDDEN), N).set(hidden);
    const now = () => ({ shown: copy(C.place(SHOWN), N * ways) });
    onProgress = (done) => tell({ ...now(), done });
    must(C.fill_in(ways, seed), "fill in");
    return now();
  },

  /* ---- continuous chains ---- */
  wish({ kind, a, b, weight, temperature, ...rest }) {
    C.dream_wish(kind, a, b, weight, temperature);
    Object.assign(chains, rest);
  },
  fresh({ seed }) {
    for (let k = 0; k < 10; k++) C.dream_fresh(k, k ? 0 : seed);
    chains.steps = 0;
  },
  poke({ which, x, y, size }) { C.dream_poke(which, x, y, size); },
  renew({ which }) { C.dream_fresh(which, 0); },
  dream({ on }, tell) {
    clearTimeout(chains.timer);
    if (!on) {                                     /* the current state */
      chains.speed = 0;
      return tellChains(tell);
    }
    chains.last = chains.mark = performance.now(), chains.made = chains.speed = 0;
    chainStep(tell);
  },

  /* ---- known densities ---- */
  place({ density, points, seed }) {
    floats(C.walk_place(5), points.length).set(points);
    Object.assign(walk, { density, points: points.length / 2 });
    must(C.walk_start(density, walk.points, seed), "walk");
    return { grid: copy(C.walk_place(6), 4096), truth: copy(C.walk_place(3), 60) };
  },
  how(given) { Object.assign(walk, given), C.walk_forget(); },
  rate({ rate }) { walk.rate = rate, walk.last = performance.now(); },
  drop({ x, y }) { C.walk_drop(x, y); },
  walk({ on, once }, tell) {
    clearTimeout(walk.timer);
    walk.last = performance.now(), walk.countedAt = -1e9;
    if (on || once) walkStep(tell, !on);
    else tellWalk(tell, []);
  },

  /* ---- the plane ---- */
  world({ world, seed, own, classes }) {
    if (own) {
      floats(C.plane_place(OWN), own.length / 3 * 2).set(own.filter((v, i) => i % 3 < 2));
      floats(C.plane_place(POINTS), own.length / 3).set(own.filter((v, i) => i % 3 === 2));
    }
    C.plane_own(own ? own.length / 3 : 0, classes);
    must(C.plane_start(world, seed), "plane");
    const points = copy(C.plane_place(POINTS), 1500);
    return { points: own ? Float32Array.from(own) : points, truth: C.plane_truth() };
  },
  plan({ left, right, steps, rate, noise, fresh, l2 }) {
    must(C.plane_plan(left, right, steps, rate, noise, fresh, l2), "plan");
    plane.noise = noise;
  },
  learn({ on, once }, tell) {
    clearTimeout(plane.timer);
    if (on || once) learnStep(tell, !on);
  },
};

const chains = { step: 1, noise: .01, rate: 60, clean: 1, steps: 0, speed: 0, ranAway: -1e9 };
function tellChains(tell) {
  const now = performance.now();
  must(C.dream_show(chains.clean), "dream");
  tell({ shown: copy(C.place(SHOWN), 10 * N), chance: copy(C.place(CHANCE), 100),
    sight: copy(C.place(SIGHT), 10),
    steps: chains.steps, rate: chains.speed, diverged: now - chains.ranAway < 3000 });
}
function chainStep(tell) {
  const now = performance.now();
  const due = Math.min(3, Math.floor((now - chains.last) * chains.rate / 1000));
  if (due > 0) {
    if (!C.dream(due, chains.step, chains.noise)) {         /* too large a step */
      C.problem(), jobs.fresh({ seed: 0 }), chains.ranAway = now;
    }
    chains.last = Math.max(chains.last + due * 1000 / chains.rate, now - 100);
    chains.steps += due, chains.made += due;
  }
  if (now - (chains.shownAt ?? 0) > 60) {
    chains.shownAt = now;
    if (now - chains.mark > 400) chains.speed = chains.made * 1000 / (now - chains.mark);
    if (now - chains.mark > 3000) chains.mark = now, chains.made = 0;
    tellChains(tell);
  }
  chains.timer = setTimeout(guarded, due > 0 ? 0 : 5, chainStep, tell);
}

/* ---- known densities: every step is computed here, in walk.c ---- */
const walk = { kind: 1, a: .05, noise: 1, leaps: 10, rate: 3 };
function tellWalk(tell, trail) {
  const now = performance.now();
  if (now - (walk.countedAt ?? -1e9) > 400) C.walk_facts(), walk.countedAt = now;
  tell({ chain: copy(C.walk_place(0), 32), path: copy(C.walk_place(1), 90),
    histogram: copy(C.walk_place(2), 60), facts: copy(C.walk_place(4), 12), trail,
    ranAway: now - (walk.ranAway ?? -1e9) < 3000 });
}
function walkStep(tell, once) {
  const now = performance.now(), trail = [];
  const due = once ? 1 : Math.min(200, Math.floor((now - walk.last) * walk.rate / 1000));
  for (let k = 0; k < due && performance.now() - now < 50; k++) {
    if (!C.walk_step(walk.kind, walk.a, walk.noise, walk.leaps)) {
      C.problem(), C.walk_start(walk.density, walk.points, 1), walk.ranAway = now;
      break;
    }
    trail.push(...copy(C.walk_place(1), 9));
  }
  if (due) walk.last = Math.max(walk.last + due * 1000 / walk.rate, now - 200), tellWalk(tell, trail);
  if (!once) walk.timer = setTimeout(guarded, due ? 15 : 5, walkStep, tell);
}

const plane = { noise: 1 };
function learnStep(tell, once) {
  const facts = [], stopped = [];
  let updates = 0;
  const start = performance.now();
  do {
    for (let k = 0; k < 2; k++) {
      if (once) continue;
      C.plane_learn(k, 1);
      facts.push(copy(C.plane_place(FACTS), 8));
      if (facts.at(-1)[5]) stopped[k] = text(C.problem());
    }
    updates++;
  } while (!once && !stopped.length && performance.now() - start < 70);
  const views = [0, 1].map((k) => {
    const drawn = C.plane_view(k, once ? 0 : 4, plane.noise);
    const grid = (place) => (drawn ? copy(C.plane_place(place), 4096) : []);
    C.problem();                                  /* if f has diverged, it cannot be drawn */
    return { density: grid(DENSITY), best: grid(BEST), sure: grid(SURE),
      dream: copy(C.plane_place(DREAM + k), 240),
      likely: drawn ? floats(C.plane_place(FACTS), 8)[6] : NaN };
  });
  tell({ facts, views, stopped, ms: performance.now() - start, updates: once ? 0 : updates });
  if (!once && !stopped.length) plane.timer = setTimeout(guarded, 0, learnStep, tell);
}

function failed(error, id) { postMessage({ id, error: String(error?.message ?? error) }); }
function guarded(step, ...arguments_) {
  try { step(...arguments_); } catch (error) { failed(error); }
}
async function work() {
  while (waiting.size) {
    const [key, { id, kind, given }] = waiting.entries().next().value;
    waiting.delete(key);
    const tell = (told) => postMessage({ id, told });
    try { postMessage({ id, done: await jobs[kind](given, tell) ?? {} }); }
    catch (error) { failed(error, id); }
    await new Promise((next) => setTimeout(next));     /* let newer questions replace older ones */
  }
  work.busy = false;
}
onmessage = ({ data }) => {
  const key = data.key ?? data.kind;
  if (waiting.has(key)) postMessage({ id: waiting.get(key).id, done: null });
  waiting.delete(key), waiting.set(key, data);
  if (!work.busy) work.busy = true, work();
};
