// A web handler that lets one request at a time change an account, whichever host it arrives at.
//
// In a clone, from its root (the first line builds the package, and is needed once):
//
//     npm install --no-save ./packages/node
//     LOCKMOD_NODES=redis://127.0.0.1:7001,redis://127.0.0.1:7002,redis://127.0.0.1:7003 node examples/node/web.mjs 8080
//     curl -X POST localhost:8080/account/17

import { createServer } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { HeldError, Locker, LockError, LostError } from 'lockmod'

// One locker for the whole program. A handler that crashes blocks its account for 5 s.
const locker = new Locker(process.env.LOCKMOD_NODES, {
  ttl: 5000,
  wait: 2000,
  label: `web-${process.pid}`,
})

/** Your work: pass the fence to the database, so that it refuses a late writer. */
async function change(account, fence, signal) {
  await sleep(10, null, { signal })
  return `account ${account} changed under fence ${fence}`
}

/** Returns status and text of the response. `gone` is aborted when the client has gone away. */
async function handle(account, gone) {
  try {
    const work = (guard, lost) => change(account, guard.fence, lost)
    return [200, await locker.using(`account:${account}`, { signal: gone }, work)]
  } catch (error) {
    if (error instanceof HeldError) return [409, `busy: ${error.message}`]
    if (error instanceof LostError) return [503, `stopped in the middle: ${error.message}`]
    if (error instanceof LockError) return [503, `no locks at present: ${error.message}`]
    throw error
  }
}

const server = createServer(async (request, response) => {
  const gone = new AbortController()
  response.once('close', () => gone.abort())
  const [status, text] = await handle(request.url.split('/').at(-1), gone.signal).catch((error) => [
    500,
    error.message,
  ])
  response.writeHead(status).end(`${text}\n`)
})
server.listen(Number(process.argv[2]), '127.0.0.1', () => {
  console.log('listening on', server.address().port)
})
