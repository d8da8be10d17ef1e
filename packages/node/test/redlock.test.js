'use strict'

// What users of node-redlock rely on, tested on node-redlock and on ours, so that they behave
// alike.

const assert = require('node:assert/strict')
const { spawnSync } = require('node:child_process')
const { after, test } = require('node:test')
const { setTimeout: sleep } = require('node:timers/promises')
const { inspect } = require('node:util')
const { createClient, createClientPool, createSentinel } = require('@redis/client')
const { Redis, Cluster } = require('ioredis')
const theirs = require('redlock')
const ours = require('lockmod/redlock')
const { Locker } = require('lockmod')
const { server } = require('../lib/clients.js')
const { Node, block, three, until, urls } = require('./nodes.js')

const nodes = three()
const open = []
after(() => open.forEach((client) => client.disconnect()))

function clients(list, options = {}) {
  const made = list.map(({ port }) => new Redis({ port, host: '127.0.0.1', ...options }))
  for (const client of made) client.on('error', () => {})
  open.push(...made)
  return made
}

/** node-redlock, and ours, made in every possible way. */
const KINDS = [
  ['redlock', theirs, (settings) => new theirs.default(clients(nodes), settings)],
  ['lockmod', ours, (settings) => new ours.default(clients(nodes), settings)],
  ['lockmod on one node', ours, (settings) => new ours.default(clients(nodes.slice(0, 1)), settings)],
  [
    'lockmod on a locker',
    ours,
    (settings) => new ours.default(new Locker(urls(nodes), { timeout: 200 }), settings),
  ],
]

function each(name, work) {
  for (const [kind, library, make] of KINDS) {
    test(`${kind}: ${name}`, () => work({ make, library, key: `${name}:${kind}` }))
  }
}

const once = { retryCount: 0 }

each('a lock is acquired and released', async ({ make, library, key }) => {
  const [redlock, other] = [make(), make()]
  const lock = await redlock.acquire([key], 5000)
  assert.ok(lock instanceof library.Lock)
  assert.deepEqual(lock.resources, [key])
  assert.ok(lock.expiration > Date.now() + 3000 && lock.expiration <= Date.now() + 5000)
  const start = Date.now()
  const held = await other.acquire([key], 5000, { retryCount: 3, retryDelay: 50 }).catch((error) => error)
  assert.ok(held instanceof library.ExecutionError, held)
  assert.match(held.message, /quorum/)
  assert.ok(Date.now() - start < 3000)
  const { attempts } = await lock.release()
  assert.equal(attempts.length, 1)
  assert.equal(lock.expiration, 0)
  await (await other.acquire([key], 5000, once)).release()
})

each('errors of nodes are emitted', async ({ make, library, key }) => {
  const [redlock, other] = [make(), make(once)]
  const lock = await redlock.acquire([key], 5000)
  const errors = []
  other.on('error', (error) => errors.push(error))
  const held = await other.acquire([key], 5000).catch((error) => error)
  assert.ok(errors.length > 0 && errors.every((error) => error instanceof library.ResourceLockedError))
  const stats = await held.attempts.at(-1)
  assert.ok(stats.votesAgainst.size > 0)
  // Of several calls at once, the text says which one it is about.
  if (library !== theirs) assert.ok(errors.every((error) => error.message.startsWith(`${key}: held by`)))
  await lock.release()
})

each('the error of a release tells that the lock had ended', async ({ make, library, key }) => {
  const redlock = make(once)
  const errors = []
  redlock.on('error', (error) => errors.push(error))
  const lock = await redlock.acquire([key], 700)
  await sleep(800)
  const ended = await lock.release().catch((error) => error)
  assert.ok(ended instanceof library.ExecutionError, ended)
  // What a program does not report, because it happens.
  assert.ok(errors.length > 0 && errors.every((error) => error instanceof library.ResourceLockedError))
})

test('the votes of clients that were given as URLs show no password', async () => {
  const list = urls(nodes).map((url) => url.replace('//', '//:secret@'))
  const failed = await new ours.Redlock(list, once).acquire(['a'], 5000).catch((error) => error)
  const { votesAgainst } = await failed.attempts.at(-1)
  assert.ok(votesAgainst.size > 0 && ![...votesAgainst.keys()].some((key) => key.includes('secret')))
})

test('a node that fails while a quorum grants emits nothing', async () => {
  const errors = []
  await nodes[2].kill()
  const redlock = new ours.Redlock(urls(nodes))
  redlock.on('error', (error) => errors.push(error))
  const lock = await redlock.acquire(['quorum'], 5000)
  await (await lock.extend(6000)).release()
  assert.deepEqual(errors, [])
  await nodes[1].kill()
  await assert.rejects(redlock.acquire(['quorum'], 5000, once), ours.ExecutionError)
  assert.ok(errors.length >= 1)
})

// Regression: it failed for ever, with "The lock has been released before."
test('a release that too few nodes confirmed can be tried again', async () => {
  const redlock = new ours.Redlock(urls(nodes))
  redlock.on('error', () => {})
  const lock = await redlock.acquire(['again'], 60_000)
  for (const node of nodes.slice(1)) node.pause()
  await assert.rejects(lock.release(), ours.ExecutionError)
  for (const node of nodes.slice(1)) node.resume()
  await lock.release()
  await assert.rejects(lock.release(), { message: 'The lock has been released before.' })
  await (await redlock.acquire(['again'], 5000)).release()
})

each('whoever waits gets it', async ({ make, key }) => {
  const [redlock, other] = [make(), make({ retryCount: -1, retryDelay: 20, retryJitter: 5 })]
  const lock = await redlock.acquire([key], 10_000)
  const waiting = other.acquire([key], 10_000)
  await sleep(100)
  await lock.release()
  await (await waiting).release()
})

each('several resources at once, or none', async ({ make, library, key }) => {
  const redlock = make(once)
  const [a, b, c] = ['a', 'b', 'c'].map((part) => `${key}:${part}`)
  const lock = await redlock.acquire([b, a], 5000)
  await assert.rejects(redlock.acquire([c, a], 5000), library.ExecutionError)
  await (await redlock.acquire([c], 5000)).release()
  const longer = await lock.extend(8000)
  await longer.release()
  await (await redlock.acquire([a, b, c], 5000)).release()
})

each('an extension replaces the lock', async ({ make, library, key }) => {
  const redlock = make(once)
  const lock = await redlock.acquire([key], 1000)
  const longer = await lock.extend(6000)
  assert.equal(lock.expiration, 0)
  assert.ok(longer.expiration > Date.now() + 4000)
  await assert.rejects(lock.extend(5000), library.ExecutionError)
  await sleep(1100)
  await assert.rejects(redlock.acquire([key], 1000), library.ExecutionError)
  await longer.release()
})

// Code that keeps the first object, in a closure for example, still ends the lock with it.
each('the object of a lock that was extended still releases it', async ({ make, library, key }) => {
  const [redlock, other] = [make(once), make(once)]
  const lock = await redlock.acquire([key], 2000)
  const longer = await lock.extend(6000)
  await lock.release()
  await (await other.acquire([key], 1000)).release()
  await assert.rejects(longer.extend(1000), library.ExecutionError)
  await assert.rejects(longer.release(), library.ExecutionError)
})

each('a lock ends with its duration', async ({ make, library, key }) => {
  const [redlock, other] = [make(once), make(once)]
  const lock = await redlock.acquire([key], 1500)
  await until('it has ended', () => lock.expiration < Date.now())
  await assert.rejects(lock.extend(1000), library.ExecutionError)
  const next = await until('it is free', () => other.acquire([key], 5000).catch(() => null))
  await assert.rejects(lock.release(), library.ExecutionError)
  await next.release()
  await assert.rejects(next.release(), library.ExecutionError)
})

each('a lock that nobody refers to stays for its duration', async ({ make, library, key }) => {
  const redlock = make(once)
  await redlock.acquire([key], 8000)
  await sleep(10)
  global.gc()
  await assert.rejects(redlock.acquire([key], 1000), library.ExecutionError)
})

each('a routine holds the lock for longer than its duration', async ({ make, library, key }) => {
  const [redlock, other] = [make(), make(once)]
  const said = await redlock.using([key], 1000, { automaticExtensionThreshold: 500 }, async (signal) => {
    await sleep(2500)
    await assert.rejects(other.acquire([key], 1000), library.ExecutionError)
    return signal.aborted
  })
  assert.equal(said, false)
  await (await other.acquire([key], 1000)).release()
  const wrong = redlock.using([key], 1000, async () => {
    throw new RangeError('mine')
  })
  await assert.rejects(wrong, RangeError)
  await (await other.acquire([key], 1000)).release()
})

each('a routine is told that its lock is lost', async ({ make, library, key }) => {
  let error
  const lost = make().using([key], 1000, async (signal) => {
    await Promise.all(nodes.map((node) => node.run('DEL', key)))
    await until('it is told', () => signal.aborted)
    error = signal.error
    assert.equal(signal.reason.name, 'AbortError')
  })
  await assert.rejects(lost, library.ExecutionError)
  assert.ok(error instanceof library.ExecutionError)
})

each('wrong calls are refused', async ({ make, key }) => {
  const redlock = make()
  await assert.rejects(redlock.acquire([key], 10.5), /integer/)
  await assert.rejects(redlock.using([key], 10.5, async () => {}), /integer/)
  await assert.rejects(redlock.using([key], 500, async () => {}), /automaticExtensionThreshold/)
  await assert.rejects(redlock.using([key], 5000), /function/)
})

each('what would be no lock is refused', async ({ make, library, key }) => {
  const redlock = make(once)
  // node-redlock locks each letter of a text, and takes an empty array for locked.
  const wrong = library === ours ? ['acct', null, undefined, [], [''], [key, 5]] : [null]
  for (const resources of wrong) {
    await assert.rejects(redlock.acquire(resources, 2000), library.ExecutionError, String(resources))
    let hasRun = false
    const used = redlock.using(resources, 2000, async () => {
      hasRun = true
    })
    await assert.rejects(used, library.ExecutionError)
    assert.equal(hasRun, false)
  }
  for (const node of nodes) assert.equal(await node.run('EXISTS', 'a', 'c', 't'), 0)
})

each('a bad duration fails as in node-redlock', async ({ make, library, key }) => {
  const redlock = make(once)
  for (const duration of [NaN, '5', null, 10.5]) {
    await assert.rejects(redlock.acquire([key], duration), /integer/)
  }
  for (const duration of [0, -1, Infinity]) {
    await assert.rejects(redlock.acquire([key], duration), library.ExecutionError, String(duration))
  }
})

test('an error that no node was asked for has no attempts', async () => {
  const redlock = new ours.Redlock(clients(nodes))
  for (const duration of [0, Infinity]) {
    const { attempts, cause } = await redlock.acquire(['none'], duration).catch((error) => error)
    assert.deepEqual([attempts, cause.name], [[], 'OptionError'])
  }
})

test('a wrong client or setting is refused', async () => {
  const [client] = clients(nodes)
  for (const wrong of [null, undefined, 5, client, 'redis://a', []]) {
    assert.throws(() => new ours.Redlock(wrong), { name: 'OptionError' }, String(wrong))
  }
  assert.throws(() => new ours.Redlock(clients(nodes.slice(0, 2))), {
    name: 'OptionError',
    message: /^2 clients survive no more failures than 1: .*a Locker with allowEvenNodes: true$/,
  })
  const pair = new Locker(urls(nodes).slice(0, 2), { allowEvenNodes: true })
  await (await new ours.Redlock(pair).acquire(['pair'], 5000)).release()
  const redlock = new ours.Redlock([client], { retryDelay: undefined, retryCount: Infinity })
  // What an object inherits counts.
  assert.equal(new ours.Redlock([client], Object.create({ retryCount: 7 })).settings.retryCount, 7)
  for (const [settings, said] of [
    [{ retryCount: '3' }, /^retryCount is '3', of type string: give a number, -1 or more$/],
    [{ retryCount: -2 }, /retryCount is -2/],
    [{ retryCount: null }, /retryCount is null/],
    [{ retryDelay: 'a' }, /^retryDelay is 'a', of type string: give a number of milliseconds, 0 or more$/],
    [{ retryDelay: -5 }, /retryDelay is -5/],
    [{ driftFactor: 2 }, /driftFactor is 2: give a number, 0 or more, less than 1/],
    [{ driftFactor: NaN }, /driftFactor is NaN/],
    [{ nope: 1 }, /there is no setting 'nope': there are driftFactor, /],
    ['x', /the settings are 'x', of type string: give an object/],
  ]) {
    const refused = { name: 'OptionError', message: said }
    assert.throws(() => new ours.Redlock([client], settings), refused)
    await assert.rejects(redlock.acquire(['set'], 5000, settings), refused)
    if (settings !== 'x') await assert.rejects(redlock.using(['set'], 5000, settings, async () => {}), refused)
  }
})

test('settings of null are left out', async () => {
  // In `acquire` of node-redlock, too; its constructor fails in its own code.
  const [defaults, left] = [new ours.Redlock(clients(nodes)), new ours.Redlock(clients(nodes), null, null)]
  assert.deepEqual(left.settings, defaults.settings)
  const lock = await left.acquire(['null'], 5000, null)
  await (await left.extend(lock, 5000, null)).release()
  assert.equal(await left.using(['null'], 5000, null, async () => 7), 7)
})

test('a method that has lost its object says how to call it', async () => {
  const redlock = new ours.Redlock(clients(nodes))
  const lock = await redlock.acquire(['detached'], 5000)
  for (const [name, object] of Object.entries({ redlock, lock })) {
    const prototype = Object.getPrototypeOf(object)
    for (const key of Reflect.ownKeys(prototype)) {
      const { value, get } = Object.getOwnPropertyDescriptor(prototype, key)
      if (key === 'constructor' || key === 'value') continue
      for (const other of [undefined, null, {}, prototype, Object.create(object)]) {
        if (key === inspect.custom) {
          assert.equal(value.call(other), 'Redlock {}')
          continue
        }
        const use = get === undefined ? `call it as ${name}.${key}(...), or bind it` : `read it as ${name}.${key}`
        const message = `${key} has lost its ${name}: ${use}`
        await assert.rejects(async () => (value ?? get).call(other), { name: 'OptionError', message })
      }
    }
  }
  await lock.release()
  const message = 'a Lock is not made with new: acquire of a Redlock returns one'
  for (const given of [[], [redlock, ['a'], 'token', [], Date.now() + 5000]]) {
    assert.throws(() => new ours.Lock(...given), { name: 'OptionError', message })
  }
})

// So do the timers of node-redlock, and the connections of its clients.
test('a routine that waits for nothing but its signal keeps the process alive', () => {
  const program = `const { Redlock } = require('lockmod/redlock')
    const { execFileSync } = require('node:child_process')
    const nodes = ${JSON.stringify(urls(nodes))}
    const routine = (signal) => new Promise((resolve) => {
      signal.addEventListener('abort', resolve)
      for (const node of nodes) execFileSync('redis-cli', ['-u', node, 'DEL', 'alive'])
    })
    new Redlock(nodes).using(['alive'], 1000, routine).catch((error) => console.log(error.name))`
  const { status, stdout, stderr } = spawnSync(process.execPath, ['-e', program], { encoding: 'utf8' })
  assert.deepEqual([status, stdout], [0, 'ExecutionError\n'], stderr)
})

each('nothing is acquired after quit()', async ({ make, library, key }) => {
  const redlock = make(once)
  await redlock.quit()
  await assert.rejects(redlock.acquire([key], 1000), library.ExecutionError)
  await assert.rejects(redlock.using([key], 1000, async () => {}), library.ExecutionError)
})

test('clients of node-redis that never were connected are left alone by quit()', async () => {
  await new ours.Redlock(nodes.map(({ url }) => createClient({ url }))).quit()
})

// `using` took the name as it was: two held the lock that one of them called by another name.
each('what a subclass overrides is called by using()', async ({ make, library, key }) => {
  const redlock = make(once)
  const called = []
  class Own extends redlock.constructor {
    async acquire(resources, ...given) {
      called.push('acquire')
      return await super.acquire(resources.map((name) => `own:${name}`), ...given)
    }

    async release(...given) {
      called.push('release')
      return await super.release(...given)
    }
  }
  Object.setPrototypeOf(redlock, Own.prototype)
  const lock = await redlock.acquire([key], 5000)
  let hasRun = false
  const both = redlock.using([key], 5000, async () => {
    hasRun = true
  })
  await assert.rejects(both, library.ExecutionError)
  assert.equal(hasRun, false)
  await lock.release()
  await redlock.using([key], 1000, { automaticExtensionThreshold: 500 }, async (signal) => {
    await sleep(1500)
    assert.equal(signal.aborted, false)
  })
  assert.deepEqual(called, ['acquire', 'acquire', 'release', 'acquire', 'release'])
})

test('a subclass that passes its settings not on cannot extend its locks', async () => {
  class Own extends ours.Redlock {
    async acquire(resources, duration) {
      return await super.acquire(resources, duration)
    }
  }
  const redlock = new Own(clients(nodes), once)
  await assert.rejects(redlock.using(['own'], 5000, assert.fail), /pass its settings on/)
  await (await redlock.acquire(['own'], 5000)).release()
})

test('a routine that blocks the event loop does not lose its lock', async () => {
  const redlock = new ours.Redlock(clients(nodes))
  await redlock.using(['blocked'], 1000, async (signal) => {
    block(3000)
    assert.equal((await nodes[0].info('blocked')).state, 'held')
    assert.equal(signal.aborted, false)
  })
})

test('a routine is not begun under a lease that has ended', async () => {
  const redlock = new ours.Redlock(clients(nodes))
  let isBegun = false
  const used = redlock.using(['ended'], 1000, async () => {
    isBegun = true
  })
  await null
  // It is granted while the loop is blocked, and not extended after that.
  block(300)
  for (const node of nodes) node.pause()
  block(1500)
  for (const node of nodes) node.resume()
  await assert.rejects(used, { name: 'ExecutionError' })
  assert.ok(!isBegun)
})

test('resources whose waits are longer than a duration are all held in the end', async () => {
  const redlock = new ours.Redlock(clients(nodes), { retryCount: -1 })
  const b = await redlock.acquire(['many:b'], 3000)
  const both = await redlock.acquire(['many:b', 'many:a'], 1500)
  assert.ok(b.expiration <= Date.now() + 200)
  assert.ok(both.expiration > Date.now() + 700)
  for (const name of ['many:a', 'many:b']) assert.equal((await nodes[0].info(name)).state, 'held')
  await both.release()
})

test('what differs names the alternative', async () => {
  const [client] = clients(nodes)
  assert.throws(() => new ours.Redlock([client], {}, { acquireScript: '' }), /module/)
  assert.throws(() => new ours.Redlock([client, client, client]), /same node/)
  const cluster = new Cluster([{ port: 1 }], { lazyConnect: true })
  assert.throws(() => new ours.Redlock([cluster]), /Locker/)
  assert.throws(() => new ours.Redlock([{}]), /Locker/)
  const tls = new Redis({ port: 1, lazyConnect: true, tls: { ca: 'PEM' } })
  assert.throws(() => new ours.Redlock([tls]), /cacert/)
  const lock = await new ours.Redlock([client]).acquire(['value'], 1000)
  assert.throws(() => lock.value, /fence/)
  assert.ok(lock.fence >= 1)
  await lock.release()
  await nodes[0].run('SET', 'text', 'x')
  const text = await new ours.Redlock([client]).acquire(['text'], 1000).catch((error) => error)
  assert.equal(text.cause.name, 'RefusedError')
})

test('errors name what the user wrote', async () => {
  const redlock = new ours.Redlock(clients(nodes.slice(0, 1)), once)
  const said = (duration, of = redlock) => of.acquire(['named'], duration).then(assert.fail, (error) => error.message)
  assert.match(await said(-5), /^duration is -5: give a number of milliseconds, 30 to 86400000$/)
  assert.match(await said('5'), /^Duration must be an integer value in milliseconds: it is '5', of type string\.$/)
  assert.match(await said(2), /^duration 2 ms is too short: give 30 ms to 86400000 ms$/)
  assert.match(await said(20), /^duration 20 ms is too short: give 30 ms to 86400000 ms$/)
  assert.match(await said(1e11), /^duration .* above .* give 30 ms to 86400000 ms .* give a Locker with maxTtl$/)
  const slow = new ours.Redlock(new Locker(urls(nodes), { timeout: 3000 }))
  assert.match(await said(5000, slow), /^the Locker's timeout 3000 ms does not fit into duration 5000 ms/)
  const lock = await redlock.acquire(['copied'], 5000)
  for (const wrong of [{}, null, undefined, 'lock', { ...lock }, new ours.Redlock(['redis://a'])]) {
    await assert.rejects(redlock.release(wrong), /^ExecutionError: The lock to release is of the kind/)
    await assert.rejects(redlock.extend(wrong, 1000), /^ExecutionError: The lock to extend is of the kind/)
  }
  await redlock.release(lock)
})

test('a client of Sentinels leads to its group', () => {
  // It has no host of its own, and locked on localhost:6379.
  const sentinels = [{ host: '10.9.9.9' }, { host: '::1', port: 5 }]
  const url = (options) => server(new Redis({ sentinels, name: 'my/m', lazyConnect: true, ...options }))
  const places = '10.9.9.9:26379,[::1]:5/my%2Fm'
  assert.deepEqual(url({ keyPrefix: 'p:' }), { url: `redis+sentinel://${places}/0`, prefix: 'p:' })
  const secret = url({ username: 'u', password: 'p@', db: 2 })
  assert.equal(secret.url, `redis+sentinel://u:p%40@${places}/2`)
  const eye = url({ sentinelUsername: 'eye', sentinelPassword: 's&' })
  const login = 'sentinel_username=eye&sentinel_password=s%26'
  assert.equal(eye.url, `redis+sentinel://${places}/0?${login}`)
  const tls = url({ tls: {}, sentinelTLS: {}, enableTLSForSentinelMode: true })
  assert.equal(tls.url, `rediss+sentinel://${places}/0`)
  const wrong = [
    [{ role: 'slave' }, /replica/],
    [{ sentinels: [{ port: 1 }] }, /no host/],
    [{ natMap: { a: { host: 'b', port: 1 } } }, /natMap/],
    [{ sentinelTLS: {} }, /differ in TLS/],
    [{ tls: {}, sentinelTLS: { ca: 'PEM' }, enableTLSForSentinelMode: true }, /cacert/],
    [{ tls: {}, sentinelTLS: { minVersion: 'TLSv1.3' }, enableTLSForSentinelMode: true }, /minVersion/],
  ]
  for (const [options, said] of wrong) assert.throws(() => url(options), said)
  // ioredis itself refuses these.
  const made = (options) => ({ options, connector: {}, sendCommand() {} })
  assert.throws(() => server(made({ sentinels })), /no group/)
  assert.throws(() => server(made({ sentinels: [], name: 'm' })), /no Sentinel/)
})

test('clients that are not understood are refused', () => {
  class Anywhere {
    disconnect() {}
  }
  const wrong = [
    [createClient({ url: 'rediss://a', socket: { tls: true, ca: 'PEM' } }), /cacert/],
    [createClient({ socket: { host: 'a' }, credentialsProvider: provider() }), /credentialsProvider/],
    [createClientPool({ url: 'redis://a' }), /no options/],
    [createSentinel({ name: 'm', sentinelRootNodes: [{ host: 'a', port: 1 }] }), /no options/],
    [new Redis({ host: 'a', Connector: Anywhere, lazyConnect: true }), /Connector/],
    [new Redis({ path: '/x', tls: {}, lazyConnect: true }), /TLS over/],
    [{ options: { host: 'a' } }, /client 1 \(an object of Object\) .* neither ioredis nor node-redis/],
    [null, /client 1 \(null\) .* no options/],
  ]
  // They were dropped, and the lock failed as its certificate was checked all the same.
  const settings = { servername: 'b', checkServerIdentity() {}, rejectUnauthorized: false, ciphers: 'x' }
  for (const [name, value] of Object.entries(settings)) {
    const said = new RegExp(`its ${name}.* would not be used`)
    wrong.push([new Redis({ host: 'a', lazyConnect: true, tls: { [name]: value } }), said])
    wrong.push([createClient({ url: 'rediss://a', socket: { tls: true, [name]: value } }), said])
  }
  for (const [client, said] of wrong) assert.throws(() => server(client), said)
  assert.throws(() => new ours.Redlock([{ options: {} }]), { name: 'OptionError', message: /give a URL.*or a Locker/ })
  // As after `jest.resetModules()`. Regression: it was told to give a Locker, which it had.
  class Locker {}
  const message = /not a list: .* or a Locker of this copy of the package/
  assert.throws(() => new ours.Redlock(new Locker()), { name: 'OptionError', message })
  assert.throws(() => new ours.Redlock({}), { name: 'OptionError', message: /or a Locker$/ })
  const local = new Redis({ path: '/run/x?', password: 'p&', db: 3, lazyConnect: true })
  assert.equal(server(local).url, 'unix:///run/x%3F?user=default&pass=p%26&db=3')
  // They name no host, and connect to localhost.
  assert.equal(server(createClient()).url, 'redis://localhost:6379/0')
  assert.equal(server(createClient({ socket: { port: 1 }, database: 2 })).url, 'redis://localhost:1/2')
  assert.equal(server(createClient({ url: 'rediss://u:p@a' })).url, 'rediss://u:p@a:6379/0')
  const usual = { servername: 'a', rejectUnauthorized: true }
  assert.equal(server(new Redis('rediss://a', { lazyConnect: true, tls: usual })).url, 'rediss://a:6379/0')
})

function provider() {
  return { type: 'async-credentials-provider', credentials: async () => ({ username: 'u', password: 'p' }) }
}

test('objects for the same servers share their connections', async () => {
  // One for each request used up the descriptors.
  const count = async () => (await nodes[0].run('CLIENT', 'LIST')).split(' db=7 ').length - 1
  const list = urls(nodes).map((url) => `${url}/7`)
  const first = new ours.Redlock(list)
  await (await first.acquire(['shared'], 5000)).release()
  const before = await count()
  const others = Array.from({ length: 50 }, () => new ours.Redlock(list))
  await Promise.all(others.map(async (one) => (await one.acquire(['shared'], 5000)).release()))
  assert.ok(before > 0)
  assert.equal(await count(), before)
  // The last one closes them.
  for (const one of others) await one.quit()
  await (await first.acquire(['shared'], 5000)).release()
  await first.quit()
  await until('the connections have ended', async () => (await count()) === 0)
})

test('clients of every kind lead to their server', async () => {
  const [port] = nodes.map((node) => node.port)
  const host = '127.0.0.1'
  const secret = new Node()
  await secret.start()
  try {
    await secret.run('ACL', 'SETUSER', 'u@', 'on', '>p/:', '+@all', '~*', '&*')
    await secret.run('CONFIG', 'SET', 'requirepass', 'x')
    const made = [
      [`redis://${host}:${port}`],
      clients([{ port }], { keyPrefix: 'p:', db: 0 }),
      // No password is asked for.
      clients([{ port }], { password: 'p' }),
      [createClient({ url: `redis://${host}:${port}/0` })],
      [createClient({ socket: { host, port } })],
      [createClient({ url: `redis://u%40:p%2F%3A@${host}:${secret.port}` })],
      [new Redis({ host, port: secret.port, username: 'u@', password: 'p/:', lazyConnect: true })],
    ]
    for (const list of made) {
      const lock = await new ours.Redlock(list).acquire(['kinds'], 1000)
      if (list[0].options?.keyPrefix) assert.equal((await nodes[0].info('p:kinds')).state, 'held')
      await lock.release()
    }
  } finally {
    await secret.remove()
  }
})
