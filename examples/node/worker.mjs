// A worker that handles each task of a list under its own lock, and stops when that is lost.
//
// In a clone, from its root (the first line builds the package, and is needed once):
//
//     npm install --no-save ./packages/node
//     LOCKMOD_NODES=redis://127.0.0.1:7001,redis://127.0.0.1:7002,redis://127.0.0.1:7003 node examples/node/worker.mjs a b c
//
// Start it twice: the two never handle the same task at the same time.

import { setTimeout as sleep } from 'node:timers/promises'
import { HeldError, Locker, LostError } from 'lockmod'

const label = `worker-${process.pid}`
const locker = new Locker(process.env.LOCKMOD_NODES, { ttl: 10_000, label })

/** Your work, step by step. */
async function handle(task, guard) {
  for (let step = 0; step < 3; step++) {
    guard.check() // throws LostError: the next step is another worker's
    console.log(`${task}: step ${step} under fence ${guard.fence}`)
    await sleep(10)
  }
}

for (const task of process.argv.slice(2)) {
  try {
    await locker.using(`task:${task}`, { wait: 0 }, (guard) => handle(task, guard))
  } catch (error) {
    if (error instanceof HeldError) console.log(`${task}: left to ${error.label ?? 'another'}`)
    else if (error instanceof LostError) console.log(`${task}: given up: ${error.message}`)
    else throw error
  }
}
