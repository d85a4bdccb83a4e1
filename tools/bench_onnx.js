// onnxruntime's side of `make bench-peers`, and of tests/tools/test_onnx.py: executes requests, a
// line in, a line out.
//
//     hello                     ok 1.30.0
//     open FILE THREADS         ok
//     time N RUNS               ok 12.3    milliseconds, the mean of RUNS runs (of several; one more
//                                          runs before, untimed) on N random images
//     answers N FROM TO         ok         N images, floats in FROM; all outputs, floats, to TO
//     close                     ok
//
// The package: tools/get_package.sh onnxruntime.
"use strict";
const fs = require("fs");
const path = require("path");
const build = process.env.BUILD || "build";
const ort = require(path.resolve(build, "onnxruntime/node_modules/onnxruntime-node"));

let session = null;
let shape = [];

function images(n, data) {
    return { x: new ort.Tensor("float32", data, [n, ...shape]) };
}

async function open(file, threads) {
    session = await ort.InferenceSession.create(file, {
        intraOpNumThreads: threads, interOpNumThreads: 1, graphOptimizationLevel: "all"
    });
    const input = session.inputMetadata[0];
    shape = input.shape.slice(1);
}

// Milliseconds: of processor time, if the environment has PROCESSOR_TIME.
function now() {
    if (!process.env.PROCESSOR_TIME) return Number(process.hrtime.bigint()) / 1e6;
    const used = process.cpuUsage();
    return (used.user + used.system) / 1e3;
}

async function time(n, runs) {
    const size = n * shape.reduce((a, b) => a * b, 1);
    const data = new Float32Array(size);
    for (let i = 0; i < size; i++) data[i] = 2 * Math.random() - 1;
    const x = images(n, data);
    if (runs > 1) await session.run(x);
    const start = now();
    for (let i = 0; i < runs; i++) await session.run(x);
    return (now() - start) / runs;
}

async function answers(n, from, to) {
    const bytes = fs.readFileSync(from);
    const data = new Float32Array(bytes.buffer.slice(bytes.byteOffset,
                                                     bytes.byteOffset + bytes.length));
    const results = await session.run(images(n, data));
    const parts = session.outputNames.map((name) => {
        const values = results[name].data;
        return Buffer.from(values.buffer, values.byteOffset, values.byteLength);
    });
    fs.writeFileSync(to, Buffer.concat(parts));
}

async function serve(line) {
    const words = line.split(" ");
    if (words[0] === "hello")
        return " " + require(path.resolve(build, "onnxruntime/node_modules/onnxruntime-node",
                                          "package.json")).version;
    if (words[0] === "open") await open(words[1], Number(words[2]));
    else if (words[0] === "time") return " " + await time(Number(words[1]), Number(words[2]));
    else if (words[0] === "answers") await answers(Number(words[1]), words[2], words[3]);
    else if (words[0] === "close") session = null;
    else throw new Error("not understood");
    return "";
}

async function main() {
    const lines = require("readline").createInterface({ input: process.stdin });
    for await (const line of lines) {
        let answer;
        try {
            answer = "ok" + await serve(line);
        } catch (error) {
            answer = String(error.message).replace(/\n/g, " ");
        }
        process.stdout.write(answer + "\n");
    }
}
main();
