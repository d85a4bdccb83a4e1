// Runs a WebAssembly program of WASI under node: node tests/support/wasm.js PROGRAM
// Of the system it gets its name, no environment, a place to print, a clock and an end; all else is
// 'not there'. (node has a WASI module of its own; in node 20 it crashes when it is collected.)
'use strict';
const fs = require('fs');
const NOT_THERE = 8, program = new WebAssembly.Module(fs.readFileSync(process.argv[2]));
let memory;
const view = () => new DataView(memory.buffer);

class End extends Error {}
const system = {
    fd_write(file, vectors, count, written) {
        let all = 0;
        for (let i = 0; i < count; i++) {
            const at = view().getUint32(vectors + 8 * i, true);
            const size = view().getUint32(vectors + 8 * i + 4, true);
            for (let done = 0; done < size;)
                done += fs.writeSync(file, new Uint8Array(memory.buffer, at + done, size - done));
            all += size;
        }
        view().setUint32(written, all, true);
        return 0;
    },
    clock_time_get(clock, precision, to) {
        view().setBigUint64(to, process.hrtime.bigint(), true);
        return 0;
    },
    args_sizes_get(count, bytes) {                  // its own name, no more
        view().setUint32(count, 1, true);
        view().setUint32(bytes, 2, true);
        return 0;
    },
    args_get(pointers, bytes) {
        view().setUint32(pointers, bytes, true);
        view().setUint16(bytes, 0x74, true);
        return 0;
    },
    environ_sizes_get(count, bytes) {
        view().setUint32(count, 0, true);
        view().setUint32(bytes, 0, true);
        return 0;
    },
    environ_get() { return 0; },
    proc_exit(status) { process.exitCode = status; throw new End(); }
};

const imports = {};
for (const { module, name } of WebAssembly.Module.imports(program))
    (imports[module] ??= {})[name] = system[name] ?? (() => NOT_THERE);
const instance = new WebAssembly.Instance(program, imports);
memory = instance.exports.memory;
try {
    instance.exports._start();
} catch (e) {
    if (!(e instanceof End)) throw e;
}
