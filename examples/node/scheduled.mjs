// A job that every host starts at the same time, but only one of them runs.
//
// In a clone, from its root (the first line builds the package, and is needed once):
//
//     npm install --no-save ./packages/node
//     LOCKMOD_NODES=redis://127.0.0.1:7001,redis://127.0.0.1:7002,redis://127.0.0.1:7003 node examples/node/scheduled.mjs
//
// In the crontab of every host, in a folder with the package:
//
//     0 3 * * *  cd /srv/report && LOCKMOD_NODES=redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3 node scheduled.mjs
//
// The host that gets the lock keeps it for at least a minute, which is longer than the hosts'
// clocks differ and than they wait for the lock. Otherwise a late host would find it free again and
// do the job once more.

import { hostname } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { HeldError, Locker } from 'lockmod'

const locker = new Locker(process.env.LOCKMOD_NODES, { ttl: 30_000, label: hostname() })
const keep = 1000 * Number(process.argv[2] ?? 60)

/** Your job. */
async function report(fence, signal) {
  console.log(`the nightly report, under fence ${fence}`)
}

try {
  // The wait is for hosts that start in the same instant.
  await locker.using('nightly-report', { wait: 5000 }, async (guard, lost) => {
    const kept = sleep(keep, null, { signal: lost })
    await Promise.all([report(guard.fence, lost), kept])
  })
} catch (error) {
  if (!(error instanceof HeldError)) throw error
  console.log(`left to ${error.label ?? 'another host'}`)
}
