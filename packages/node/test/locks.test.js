'use strict'

const assert = require('node:assert/strict')
const { AsyncLocalStorage } = require('node:async_hooks')
const { spawnSync } = require('node:child_process')
const { getEventListeners } = require('node:events')
const { test } = require('node:test')
const { setTimeout: sleep } = require('node:timers/promises')
const { inspect } = require('node:util')
const { runInNewContext } = require('node:vm')
const { Worker } = require('node:worker_threads')
const { Node, PATIENCE, block, three, until, urls } = require('./nodes.js')
const {
  Guard,
  Guards,
  HeldError,
  Locker,
  LostError,
  NoQuorumError,
  OptionError,
  RefusedError,
} = require('lockmod')
const { ASKED, MANY, SETTINGS, TRIED } = require('../lib/options.js')
const { default: Redlock } = require('lockmod/redlock')

const nodes = three()
// A busy machine may be slow to answer; every test that needs less says so.
const patient = (options = {}) =>
  new Locker(urls(nodes), { ttl: 10_000, timeout: 2000, wait: PATIENCE, ...options })
const waiters = async (name, count) =>
  (await Promise.all(nodes.map((node) => node.info(name)))).every((told) => told.waiters === count)
const removeByForce = (name) => Promise.all(nodes.map((node) => node.run('DEL', name)))
const states = async (locker, name) => new Set((await locker.info(name)).map((told) => told.state))

test('one holds it at a time, and fences rise', async () => {
  const [locker, other] = [patient(), patient()]
  const guard = await locker.acquire('one', { label: 'worker-7' })
  assert.equal(guard.name, 'one')
  assert.ok(0 < guard.validity && guard.validity <= 10_000)
  assert.ok(!guard.isLost && !guard.lost.aborted)
  // A quorum is enough: the request to the last node may still be on its way.
  await until('all have granted it', async () => [...(await states(other, 'one'))].join() === 'held')
  const held = await other.tryAcquire('one').catch((error) => error)
  assert.ok(held instanceof HeldError)
  assert.deepEqual([held.name, held.label, held.isRetryable, held.attempts], ['HeldError', 'worker-7', true, 1])
  assert.ok(0 < held.left && held.left <= 10_000)
  assert.match(held.message, /for worker-7/)
  assert.deepEqual(held.nodes.map(({ node }) => node), urls(nodes).map((url) => url.split('//')[1]))
  assert.deepEqual(new Set(held.nodes.map(({ vote }) => vote)), new Set(['held']))
  await guard.release()
  await guard.release()
  assert.deepEqual([guard.validity, guard.isLost, guard.lost.aborted], [0, true, false])
  const next = await other.tryAcquire('one')
  assert.ok(next.fence > guard.fence)
  await next.release()
})

test('whoever waits is called', async () => {
  const locker = patient()
  const guard = await locker.acquire('line')
  const waiting = locker.acquire(Buffer.from('line'))
  await until('it stands in line', () => waiters('line', 1))
  await guard.release()
  const late = await waiting
  assert.equal(late.fence, guard.fence + 1)
  await late.release()
})

test('tasks exclude each other', async () => {
  const locker = patient()
  const fences = []
  let inside = 0
  const work = async () => {
    for (let i = 0; i < 3; i++) {
      await locker.using('tasks', async (guard) => {
        assert.equal(++inside, 1)
        fences.push(guard.fence)
        await sleep(0)
        guard.check()
        inside -= 1
      })
    }
  }
  await Promise.all(Array.from({ length: 12 }, work))
  assert.equal(fences.length, 36)
  assert.deepEqual(fences, [...new Set(fences)].sort((one, other) => one - other))
})

test('a lock that was taken away is told, whatever the work does', async () => {
  const locker = patient({ ttl: 1500, timeout: 400 })
  const guard = await locker.acquire('taken')
  const told = new Promise((resolve) => guard.lost.addEventListener('abort', resolve))
  await removeByForce('taken')
  await told
  assert.ok(guard.lost.reason instanceof LostError)
  assert.equal(guard.lost.reason.reason, 'removed')
  assert.equal(guard.exclusive, false)
  assert.throws(() => guard.check(), LostError)
  assert.equal((await locker.acquire('taken')).lost.aborted, false)

  // Work that is stopped by the signal, and work that ignores it.
  const stopped = locker.using('stopped', async (guard, lost) => {
    await removeByForce('stopped')
    await sleep(PATIENCE, null, { signal: lost })
  })
  await assert.rejects(stopped, { name: 'LostError', reason: 'removed' })
  // Test runners have errors of their own in a sandbox: this is no instance of our Error.
  const foreign = runInNewContext("Object.assign(new Error('stopped'), { name: 'AbortError' })")
  const sandboxed = locker.using('sandboxed', async (guard, lost) => {
    await removeByForce('sandboxed')
    await until('it is lost', () => lost.aborted)
    throw foreign
  })
  await assert.rejects(sandboxed, { name: 'LostError', reason: 'removed', cause: foreign })
  const careless = locker.using('careless', () => removeByForce('careless'))
  await assert.rejects(careless, { name: 'LostError', reason: 'removed' })
  // An error of the work itself is not replaced.
  const wrong = locker.using('wrong', async () => {
    await removeByForce('wrong')
    throw new RangeError('mine')
  })
  await assert.rejects(wrong, RangeError)
  // Regression: the same of one that names the loss as its cause.
  const failed = (/** @type {unknown} */ cause) => new Error('half is written', { cause })
  const unfinished = locker.using('unfinished', async (guard, lost) => {
    await removeByForce('unfinished')
    await until('it is lost', () => lost.aborted)
    throw failed(lost.reason)
  })
  await assert.rejects(unfinished, { message: 'half is written' })
  // And of an AbortError that names another cause.
  const elsewhere = locker.using('elsewhere', async (guard, lost) => {
    await removeByForce('elsewhere')
    await until('it is lost', () => lost.aborted)
    throw Object.assign(failed(new RangeError('mine')), { name: 'AbortError' })
  })
  await assert.rejects(elsewhere, { message: 'half is written' })
})

// It ended with a SuppressedError, in which the error of the block was hidden.
test('the end of a block does not throw again the loss that its guard has thrown', async () => {
  const locker = patient({ ttl: 1500, timeout: 400 })
  const lost = { name: 'LostError', reason: 'removed' }
  const lose = async (name) => {
    const guard = await locker.acquire(name)
    const told = new Promise((resolve) => guard.lost.addEventListener('abort', resolve))
    await locker.settle()
    await removeByForce(name)
    await told
    return guard
  }
  await Promise.all(
    ['check', 'extend', 'downgrade', 'release'].map(async (method) => {
      const guard = await lose(`once:${method}`)
      await assert.rejects(async () => guard[method](), lost)
      await guard[Symbol.asyncDispose]()
    }),
  )
  await assert.rejects((await lose('once:silent'))[Symbol.asyncDispose](), lost)
  // `using` knows how the work has ended.
  const caught = locker.using('once:caught', async (guard) => {
    await removeByForce(guard.name)
    await assert.rejects(guard.extend(), lost)
  })
  await assert.rejects(caught, lost)
  for (const isTold of [true, false]) {
    const guards = await locker.acquireMany(['once:a', 'once:b'])
    await locker.settle()
    await removeByForce('once:b')
    if (isTold) await assert.rejects(guards[1].extend(), lost)
    const end = guards[Symbol.asyncDispose]()
    await (isTold ? end : assert.rejects(end, lost))
  }
  // What was told of one hid what was lost after it.
  const guards = await locker.acquireMany(['later:a', 'later:b', 'later:c'])
  await locker.settle()
  await removeByForce('later:a')
  await removeByForce('later:b')
  await until('both are lost', () => guards[0].isLost && guards[1].isLost)
  assert.throws(() => guards[0].check(), lost)
  await removeByForce('later:c')
  await until('the last is lost', () => guards[2].isLost)
  await assert.rejects(guards[Symbol.asyncDispose](), { ...lost, message: /later:c/ })
})

test('a block that does not wait for its release does not begin, and holds nothing', async () => {
  const locker = patient()
  // `using` looks for this, and older versions of Node.js lack the symbol.
  const dispose = Symbol.dispose ?? Symbol.for('Symbol.dispose')
  const guard = await locker.acquire('block:a')
  const guards = await locker.acquireMany(['block:b', 'block:c'])
  const refused = (call) => ({ name: 'OptionError', message: new RegExp(`await using.*${call}\\(`) })
  assert.throws(() => guard[dispose], refused('acquire'))
  assert.throws(() => guards[dispose], refused('acquireMany'))
  for (const name of ['block:a', 'block:b', 'block:c']) {
    await (await patient().acquire(name)).release()
  }
  assert.equal(Guard.prototype[dispose], undefined)
})

test('a lock that was removed has the votes that show it, whoever finds out', async () => {
  const locker = patient()
  for (const method of ['release', 'extend']) {
    const guard = await locker.acquire('removed')
    await locker.settle()
    await removeByForce('removed')
    await assert.rejects(guard[method](), { name: 'LostError', reason: 'removed' })
    // After a release, too: it said `released`.
    const message = /fence \d+ is lost: a quorum of nodes says that it was removed by force: 3 of 3 nodes free$/
    await until('the last node has answered', () => {
      try {
        guard.check()
      } catch (error) {
        return message.test(error.message) && error.nodes.every(({ vote }) => vote === 'not_held')
      }
    })
    assert.match(inspect(guard), / removed }$/)
    assert.equal(guard.lost.reason.reason, 'removed')
  }
})

test('who is in the way is told as it is', async () => {
  const acquire = (node, name, label) => node.run('LOCK.ACQUIRE', name, `token-${label}`, 60_000, 'LABEL', label)
  const refused = async (name) => {
    const error = await patient().tryAcquire(name).catch((error) => error)
    assert.ok(error instanceof HeldError, error)
    return error
  }
  // Three clients with a part each read as three holders.
  await Promise.all(nodes.map((node, place) => acquire(node, 'split', 'abc'[place])))
  const split = await refused('split')
  assert.match(split.message, /is not free: no client has a quorum: 1 of 3 nodes holds it for a, 1 for b, 1 for c for up/)
  // The vote of a node that was slow to grant was `granted` or `free`.
  await Promise.all(nodes.slice(0, 2).map((node) => acquire(node, 'slow', 'a')))
  for (let count = 0; count < 5; count++) {
    const busy = nodes[2].run('DEBUG', 'SLEEP', 0.05)
    assert.deepEqual((await refused('slow')).nodes.map(({ vote }) => vote), ['held', 'held', 'granted'])
    await busy
  }
  // A lock that is kept for a waiter read as held by another.
  for (const node of nodes) {
    await node.run('CONFIG', 'SET', 'lockmod.reserve-ms', 10_000)
    await acquire(node, 'kept', 'a')
    const ticket = `${Date.now()}-0123456789abcdef`
    await node.run('LOCK.RELEASE', 'kept', 'waiter', 'QUEUE', 60_000, 'TICKET', ticket, 'NOTIFY', 'nobody')
    await node.run('LOCK.RELEASE', 'kept', 'token-a')
  }
  const kept = await refused('kept')
  for (const node of nodes) await node.run('CONFIG', 'SET', 'lockmod.reserve-ms', 100)
  assert.match(kept.message, /is not free: 3 of 3 nodes keep it for the first in line$/)
  assert.deepEqual([kept.label, kept.left, ...kept.nodes.map(({ vote }) => vote)], [undefined, undefined, ...Array(3).fill('reserved')])
})

test('without a quorum every node has its say', async () => {
  const locker = patient({ ttl: 6000, timeout: 500 })
  const guard = await locker.acquire('quorum')
  await nodes[0].kill()
  nodes[1].pause()
  const failed = await guard.extend().catch((error) => error)
  assert.ok(failed instanceof NoQuorumError && failed.isRetryable)
  assert.deepEqual(failed.nodes.map(({ vote }) => vote), ['unreachable', 'timed_out', 'confirmed'])
  guard.check()
  await assert.rejects(locker.tryAcquire('quorum:other'), { name: 'NoQuorumError', attempts: 1 })
  await assert.rejects(guard.release(), { name: 'NoQuorumError', isRetryable: false })
  await guard.release() // so there is nothing to repeat
})

test('a wait without end lasts until enough nodes are back', async () => {
  const locker = patient({ timeout: 200, wait: 100 })
  for (const node of nodes.slice(1)) await node.kill()
  await assert.rejects(locker.acquire('endless'), { name: 'NoQuorumError', message: /2 unreachable/ })
  const waiting = locker.acquire('endless', { wait: Infinity })
  assert.equal(await Promise.race([waiting, sleep(1500, 'waits')]), 'waits')
  await nodes[1].start()
  await (await waiting).release()
})

test('a lease that has ended keeps its reason, whatever its release says', async () => {
  const locker = patient({ ttl: 1500, timeout: 400 })
  const ended = async (name) => {
    const guard = await locker.acquire(name, { renew: false })
    await new Promise((resolve) => guard.lost.addEventListener('abort', resolve))
    return guard
  }
  const expired = { name: 'LostError', reason: 'expired' }
  // Within the margin: the nodes confirm the release.
  const early = await ended('early')
  await assert.rejects(early.release(), expired)
  assert.throws(() => early.check(), expired)
  await early.release()
  assert.throws(() => early.keep(), expired)
  const late = await ended('over')
  await until('the nodes agree', async () => !(await states(locker, 'over')).has('held'))
  await assert.rejects(late.release(), expired)
  assert.throws(() => late.check(), expired)
  assert.equal(late.lost.reason.reason, 'expired')
  const alone = await ended('alone')
  for (const node of nodes.slice(1)) node.pause()
  await assert.rejects(alone.release(), expired)
  for (const node of nodes.slice(1)) node.resume()
})

test('a lease that expires names the nodes that did not extend it', async () => {
  // `check()`, `lost` and the end of `using` said only that the lease was not renewed.
  const locker = patient({ ttl: 1500, timeout: 200 })
  const told = (error) => {
    assert.ok(error instanceof LostError, error)
    const lease = /^the lease of lock 'dumb' with fence \d+ and a ttl of 1500 ms is lost: .* time: 2 of 3 nodes /
    assert.match(error.message, lease)
    const [one, two, three] = error.nodes.map(({ vote }) => vote)
    assert.deepEqual([one, two, three], ['timed_out', 'timed_out', 'confirmed'])
    return true
  }
  let held
  const used = locker.using('dumb', async (guard, lost) => {
    held = guard
    for (const node of nodes.slice(0, 2)) node.pause()
    await new Promise((resolve) => lost.addEventListener('abort', resolve))
    told(lost.reason)
    assert.throws(() => guard.check(), told)
    await assert.rejects(guard.extend(), told)
  })
  await assert.rejects(used, told)
  assert.throws(() => held.check(), told)
  for (const node of nodes.slice(0, 2)) node.resume()
  const guard = await patient({ ttl: 1500, timeout: 400 }).acquire('still', { renew: false })
  await new Promise((resolve) => guard.lost.addEventListener('abort', resolve))
  const still = { name: 'LostError', message: /it was not extended in time$/, nodes: [] }
  assert.throws(() => guard.check(), still)
  await assert.rejects(guard.release(), still)
})

test('a lease that expires names its ttl', async () => {
  // 30 was meant to be seconds.
  const ends = async (guard, ttl) => {
    if (!guard.isLost) await new Promise((resolve) => guard.lost.addEventListener('abort', resolve))
    const message = new RegExp(` and a ttl of ${ttl} is lost: it was not extended in time`)
    assert.throws(() => guard.check(), { name: 'LostError', message })
  }
  await ends(await patient({ timeout: 5 }).acquire('short', { ttl: 30, renew: false }), '30 ms')
  const guard = await patient({ ttl: 800, timeout: 200, renew: false }).acquire('longer')
  await guard.extend(1500)
  await ends(guard, '1500 ms')
})

test('an error names the lock as it is, even like an option', async () => {
  const name = 'max_hold, of max_hold'
  const guard = await patient().acquire(name, { maxHold: 300 })
  await until('it is over', () => guard.lost.aborted)
  await assert.rejects(guard.extend(), {
    name: 'LostError',
    reason: 'max_hold',
    message: new RegExp(`lock '${name}' with fence .* as long as maxHold allows$`),
  })
})

test('a shorter ttl shortens the lease with the next renewals', async () => {
  const guard = await patient({ ttl: 3000, timeout: 400 }).acquire('shorter')
  await guard.extend(1500)
  assert.ok(guard.validity > 1500, 'its end stays as it is')
  await until('renewals ask for no more', () => guard.validity < 1500)
  await sleep(2000)
  assert.ok(0 < guard.validity && guard.validity < 1500)
  await guard.release()
})

test('several locks take the options of one', async () => {
  const locker = patient()
  const held = await locker.acquire('many:b', { label: 'other' })
  const began = Date.now()
  const all = ['many:a', 'many:b']
  await assert.rejects(locker.acquireMany(all, { wait: 0 }), { name: 'HeldError' })
  await assert.rejects(locker.usingMany(all, { wait: 200 }, () => {}), { name: 'HeldError' })
  assert.ok(Date.now() - began >= 199)
  await held.release()
  const options = { wait: 5000, ttl: 60_000, label: 'mine', renew: false, maxHold: 50_000 }
  for (const guard of await locker.acquireMany(all, { ...options, shared: ['many:c'] })) {
    assert.ok(guard.validity > 45_000 && guard.validity <= 50_000, 'maxHold is shorter than the ttl')
    assert.equal((await nodes[0].info(guard.name)).label, 'mine')
    await guard.release()
  }
  for (const [wrong, message] of [
    [{ wait: -1 }, /wait is -1/],
    [{ ttl: 1e12 }, /nodes' limit/],
    [{ label: 5 }, /label is 5/],
    [{ renew: 1 }, /renew is 1/],
    [{ maxHold: 1 }, /maxHold/],
    [{ shared: true }, /shared is true, of type boolean: give a list of names/],
  ]) {
    for (const some of [all, []]) {
      await assert.rejects(locker.acquireMany(some, wrong), { name: 'OptionError', message })
    }
  }
  const message = "there is no option 'wait': tryAcquire does not wait, acquire does"
  await assert.rejects(locker.tryAcquire('many', { wait: 1 }), { name: 'OptionError', message })
})

test('what is printed is short and has no secret', async () => {
  const list = urls(nodes)
  const secret = list.map((url) => url.replace('redis://', 'redis://someone:SECRET@'))
  const places = list.map((url) => url.replace('redis://', '')).join(', ')
  assert.equal(inspect(new Locker(secret)), `Locker { ${places} }`)
  const redlock = new Redlock(secret)
  assert.equal(inspect(redlock, { depth: 9 }), 'Redlock { 3 clients }')
  assert.equal(inspect(new Redlock(new Locker(list))), `Redlock { Locker { ${places} } }`)
  const guard = await patient().acquire("it's")
  const start = `Guard { name: "it's", fence: ${guard.fence}, `
  assert.match(inspect(guard).replace(start, '!'), /^!valid for 9\d\d\d ms }$/)
  await guard.downgrade()
  assert.match(inspect(guard).replace(start, '!'), /^!shared, valid for /)
  await guard.release()
  assert.equal(inspect(guard), `${start}released }`)
  const [vote] = await patient().settle()
  assert.deepEqual(vote, { node: list[0].replace('redis://', ''), vote: 'confirmed', text: 'confirmed' })
})

test('wrong settings are refused with what to do', async () => {
  const list = urls(nodes)
  for (const [given, options, says] of [
    [[], {}, /at least one/],
    [Array(3).fill(list[0]), {}, /same node/],
    [list.slice(0, 2), {}, /even number/],
    [['http://x'], {}, /redis:\/\//],
    [[1], {}, /node 1 is 1: give its URL/],
    ['\ud800', {}, /node 1 is broken text: give a text that UTF-8 can encode/],
    // Passwords are not shown.
    [new URL('redis://:hunter2@h'), {}, /the nodes are an object of URL: give a list/],
    [[new URL('redis://:hunter2@h')], {}, /node 1 is an object of URL: give its URL/],
    [[['redis://:hunter2@h']], {}, /node 1 is an object of Array: give its URL/],
    [['redis://h '], {}, /a space or a line end at character 10/],
    [['\0'], {}, /it has a control character \(a NUL, for example\) at character 1: leave it out/],
    [5, {}, /the nodes are 5: give a list of URLs/],
    [null, {}, /the nodes are null/],
    [Buffer.from('redis://x'), {}, /the nodes are/],
    [list, 5, /the options are 5, of type number: give an object/],
    [list, null, /the options are null/],
    [list, { ttl: 1 }, /^ttl 1 ms is too short: give 20 ms to 86400000 ms$/],
    [list, { ttl: -1 }, /ttl is -1: give a number of milliseconds, 20 to 86400000$/],
    [list, { ttl: NaN }, /ttl is NaN/],
    [list, { ttl: Infinity }, /ttl is Infinity: give a finite number of milliseconds/],
    [list, { maxHold: -1 }, /maxHold is -1: give a number of milliseconds, 20 or more/],
    [list, { wait: -1 }, /wait is -1: give a number of milliseconds, 0 or more/],
    [list, { timeout: -1 }, /^timeout is -1: give a number of milliseconds, 1 to 10000$/],
    [list, { timeout: 1e300, ttl: 6000 }, /^timeout is 1e300: give a number of milliseconds, 1 to 2000$/],
    [list, { drift: -1, ttl: 600 }, /^drift is -1: give a number of milliseconds, 0 or more, and less than 300$/],
    [list, { lostMargin: -1 }, /^lostMargin is -1: .*, 0 or more, and less than 9850$/],
    [list, { ttl: -1, timeout: 500 }, /^ttl is -1: give a number of milliseconds, 1500 to 86400000$/],
    // The range follows the other options for a wrong type, too.
    [list, { ttl: '-1', timeout: 500 }, /^ttl is '-1', of type string: .* 1500 to 86400000$/],
    [list, { timeout: [], ttl: 6000 }, /^timeout is \[\], of type object: give a number of milliseconds, 1 to 2000$/],
    [list, { ttl: 5, timeout: 500 }, /^ttl 5 ms is too short: give 1500 ms to 86400000 ms$/],
    [list, { maxTtl: -1 }, /^maxTtl is -1: give a number of milliseconds, 20 or more$/],
    [list, { maxTtl: 5 }, /^maxTtl 5 ms is below the shortest ttl that the settings allow: give 20 ms or more$/],
    [list, { maxTtl: 900, timeout: 500 }, /^maxTtl 900 ms is below .*: give 1500 ms or more$/],
    [list, { ttl: 90_000_000 }, /^ttl 90000000 ms is above .* give 20 ms to 86400000 ms .* with maxTtl$/],
    [list, { maxHold: 5 }, /^maxHold 5 ms is too short: give at least 20 ms$/],
    [list, { lostMargin: 50_000 }, /^lostMargin 50000 ms .* the ttl 30000 ms: give less than 9850 ms, or ask for a longer ttl$/],
    [list.slice(0, 2), {}, /with allowEvenNodes$/],
    [list, { ttl: null }, /^ttl is null: give a number of milliseconds, 20 to 86400000$/],
    [list, { label: null }, /^label is null: give a string of up to 128 bytes$/],
    [list, { renew: null }, /renew is null: give true or false/],
    [list, { ttl: '5s' }, /^ttl is '5s', of type string: give a number of milliseconds, 20 to 86400000$/],
    [list, { tll: 5 }, /no option 'tll'/],
    [list, { timeout: 20_000, ttl: 30_000 }, /^timeout 20000 ms .* give 1 ms to 10000 ms, a third/],
    [list, { label: 'x'.repeat(129) }, /at most 128/],
    [list, { label: '\ud800' }, /label is '\\ud800': give a well-formed string/i],
    [list, { ttl: 1e300 }, /ttl is 1e300: give a number of milliseconds, 20 to 86400000$/],
    [list, { cacert: '/no/such/file' }, /rediss:\/\//],
    // Only names of options are spelled in JavaScript's style.
    ['rediss://x', { cacert: '/no/max_ttl/such' }, /\/no\/max_ttl\/such/],
    ['rediss://x', { cacert: '/dev/null' }, /cacert: no root certificates, as PEM, in \/dev\/null$/],
    [list, new Date(), /the options are .*: give an object/],
  ]) {
    assert.throws(() => new Locker(given, options), { name: 'OptionError', message: says })
  }
  // One text, as `lockmod nodes` prints it. Regression: it was cut within the URL of a Cluster.
  for (const text of ['redis+cluster://h:1,h:2', 'redis+sentinel://h:1,h:2/g, redis://h:3,redis://h:4']) {
    assert.ok(new Locker(text))
  }
  assert.throws(() => new Locker('redis+cluster://h:1,h:2,redis://h:3'), { message: /an even number/ })
  const locker = patient()
  for (const ttl of [1, -1, Infinity]) await assert.rejects(locker.acquire('x', { ttl }), OptionError)
  await assert.rejects(locker.acquire(3), OptionError)
  await assert.rejects(locker.acquire('x', { waits: 3 }), OptionError)
  for (const options of [5, null, 'x', [], new Date(), new Map(), new AbortController().signal]) {
    const says = { name: 'OptionError', message: /the options are .*: give an object/ }
    await assert.rejects(locker.acquire('x', options), says)
    await assert.rejects(locker.tryAcquire('x', options), says)
    await assert.rejects(locker.acquireMany(['x'], options), says)
    await assert.rejects(locker.using('x', options, () => {}), says)
  }
  await assert.rejects(locker.tryAcquire('x', { wait: 5 }), /no option 'wait'/)
  await assert.rejects(locker.using('x', {}, undefined), /the work is undefined: give a function/)
  await assert.rejects(locker.using('x', {}, 5), /the work is 5: give a function/)
  await assert.rejects(locker.using('x', 1), /the work is 1: give a function/)
  await assert.rejects(locker.usingMany(['x'], 1), /the work is 1: give a function/)
  for (const work of [function* () {}, async function* () {}]) {
    await assert.rejects(locker.using('x', work), /the work is a generator, .* with await using/)
  }
  await assert.rejects(locker.acquireMany(['x'], { shared: 'abc' }), /shared is 'abc', of type string: give a list of names/)
  const guard = await locker.acquire('x')
  for (const ttl of ['5', null, {}]) {
    const says = /^ttl is .*: give a number of milliseconds, \d+ to 86400000$/
    await assert.rejects(guard.extend(ttl), { name: 'OptionError', message: says })
  }
  await guard.release()
  new Locker(list.slice(0, 2).join(), { allowEvenNodes: true })
})

test('a value of a wrong type is told with its type and what is allowed', async () => {
  const list = urls(nodes)
  const locker = new Locker(list, { ttl: 10_000, timeout: 2000, wait: 0 })
  const count = 'a number of milliseconds, '
  const allowed = {
    ttl: `${count}6000 to 86400000`,
    wait: `${count}0 or more`,
    maxHold: `${count}20 or more`,
    timeout: `${count}1 to 10000`,
    lostMargin: `${count}0 or more, and less than 9850`,
    maxTtl: `${count}20 or more`,
    drift: `${count}0 or more, and less than 15000`,
    label: 'a string of up to 128 bytes',
    renew: 'true or false',
    shared: 'true or false',
    allowEvenNodes: 'true or false',
    cacert: 'a string',
    cert: 'a string',
    key: 'a string',
    signal: 'an AbortSignal, such as the signal of an AbortController',
  }
  const calls = [
    [SETTINGS, (options) => new Locker(list, options), { ttl: `${count}20 to 86400000` }],
    [ASKED, (options) => locker.acquire('a', options), {}],
    [TRIED, (options) => locker.tryAcquire('a', options), {}],
    [ASKED, (options) => locker.using('a', options, () => {}), {}],
    [MANY, (options) => locker.acquireMany(['a'], options), { shared: 'a list of names' }],
  ]
  for (const [known, call, others] of calls) {
    for (const name of Object.keys(known)) {
      const give = others[name] ?? allowed[name]
      for (const [value, shown] of [
        [Symbol('s'), 'Symbol(s), of type symbol'],
        [null, 'null'],
        [5n, '5n, of type bigint'],
        [() => {}, '[Function (anonymous)], of type function'],
      ]) {
        const message = `${name} is ${shown}: give ${give}`
        await assert.rejects(async () => call({ [name]: value }), { name: 'OptionError', message })
      }
    }
  }
  // Options that an object inherits count, and the getters of a class.
  class Computed {
    get shared() {
      return true
    }
  }
  for (const method of ['acquire', 'tryAcquire']) {
    const message = /^ttl is '5', of type/
    await assert.rejects(locker[method]('a', Object.create({ ttl: '5' })), { message })
    for (const options of [Object.create({ shared: true }), new Computed()]) {
      const reader = await locker[method]('inherited', options)
      assert.equal(reader.exclusive, false)
      await reader.release()
    }
  }
})

test('a method that has lost its object says how to call it', async () => {
  const locker = patient()
  const guard = await locker.acquire('detached')
  const guards = await locker.acquireMany([])
  // The ends of blocks told of what is undefined.
  for (const [name, object] of Object.entries({ locker, guard, guards })) {
    const prototype = Object.getPrototypeOf(object)
    for (const key of Reflect.ownKeys(prototype)) {
      const { value: method } = Object.getOwnPropertyDescriptor(prototype, key)
      if (key === 'constructor' || method === undefined) continue
      for (const other of [undefined, null, {}, prototype, Object.create(locker)]) {
        if (key === inspect.custom) {
          assert.match(method.call(other), /^(Locker|Guard) \{\}$/)
          continue
        }
        const text = String(key).replace(/^Symbol\((.*)\)$/, '$1')
        const path = text === key ? `${name}.${key}` : `${name}[${text}]`
        const message = `${text} has lost its ${name}: call it as ${path}(...), or bind it`
        await assert.rejects(async () => method.call(other, 'x', () => {}), { name: 'OptionError', message })
      }
    }
  }
  // A getter told of a private member.
  for (const [name, { get }] of Object.entries(Object.getOwnPropertyDescriptors(Guard.prototype))) {
    if (get === undefined) continue
    const message = `${name} has lost its guard: read it as guard.${name}`
    for (const other of [undefined, null, {}, Guard.prototype, Object.create(guard), locker]) {
      assert.throws(() => get.call(other), { name: 'OptionError', message })
    }
  }
  assert.deepEqual(structuredClone(guard), {}, 'as described')
  for (const one of [guard, locker]) assert.match(inspect(Object.create(one)), /^(Guard|Locker) \{\}$/)
  const release = guard.release.bind(guard)
  await release()
})

test('a name is text or bytes, and not empty', async () => {
  const locker = patient()
  for (const [wrong, says] of [
    [5, /the name is 5, of type number: give a string or a Uint8Array/],
    [null, /the name is null/],
    ['', /the name is empty: is a variable not set\?/],
    [Buffer.alloc(0), /the name is empty/],
    ['\ud800', /well-formed/],
    ['x'.repeat(65_537), /the lock's name has 65537 bytes: give at most 65536/],
  ]) {
    const refused = { name: 'OptionError', message: says }
    await assert.rejects(locker.acquire(wrong), refused)
    await assert.rejects(locker.using(wrong, () => {}), refused)
    await assert.rejects(locker.info(wrong), refused)
    await assert.rejects(locker.acquireMany([wrong]), refused)
    await assert.rejects(locker.acquireMany([], { shared: [wrong] }), refused)
  }
  await (await locker.acquire('\u{1f512}')).release()
  // Of another realm.
  const guard = await locker.acquire(runInNewContext('new Uint8Array([97, 98])'))
  assert.equal(guard.name, 'ab')
  await guard.release()
  const released = { message: /^the lease of lock 'ab' with fence \d+ was released \d+ms ago, by release\(\) or at the end of its block$/ }
  assert.throws(() => guard.check(), released)
  await assert.rejects(guard.extend(), released)
})

test('what a program gets is not made with new', () => {
  for (const given of [[], [undefined], [5], [{}], [[]], [[{}]], [3]]) {
    const one = 'a Guard is not made with new: acquire of a Locker returns one'
    assert.throws(() => new Guard(...given), { name: 'OptionError', message: one })
    const several = 'Guards are not made with new: acquireMany of a Locker returns them'
    assert.throws(() => new Guards(...given), { name: 'OptionError', message: several })
    assert.throws(() => Guards.from(given), { name: 'OptionError', message: several })
  }
})

// As test runners do between files. The lock was granted, and stayed held: the old classes refused it.
test('a locker goes on when the package is loaded again in its thread', async () => {
  const program = `
    const old = require('lockmod')
    const locker = new old.Locker(${JSON.stringify(urls(nodes))}, { timeout: 2000 })
    for (const file of Object.keys(require.cache)) delete require.cache[file]
    const { Locker } = require('lockmod')
    const work = async () => {
      await new Locker(${JSON.stringify(urls(nodes))}, { timeout: 2000 }).using('again', () => {})
      const [guard, guards] = [await locker.acquire('again'), await locker.acquireMany(['again:2'])]
      await guard.extend()
      const held = await locker.tryAcquire('again').catch((error) => error)
      console.log(guard instanceof old.Guard, guards instanceof old.Guards, held instanceof old.HeldError)
      await guard.release()
      await guards[0].release()
      await (await locker.tryAcquire('again')).release()
      // Node.js warns of more than ten: test runners load a package for each file.
      console.log(process.listenerCount('exit'))
    }
    void work()`
  const { stdout, stderr } = spawnSync(process.execPath, ['-e', program], { encoding: 'utf8' })
  assert.equal(stdout, 'true true true\n1\n', stderr)
})

test('the package can be loaded where the timers are those of a browser', () => {
  const program = "globalThis.setInterval = () => 5; require('lockmod')"
  const { status, stderr } = spawnSync(process.execPath, ['-e', program], { encoding: 'utf8' })
  assert.equal(status, 0, stderr)
})

test('one error is one line', async () => {
  const locker = patient()
  const name = 'a\nb\x1b[2J\u2028'
  for (const [call, says] of [
    [() => new Locker(['redis://h/\n']), "'redis://h/\\n': it has a space or a line end"],
    [() => new Locker(['unix:///a%0Ab', 'unix:///a%0Ab']), '/a\\nb and /a\\nb, are the same node'],
    [() => new Locker(['redis://h%0A']), 'its host is not a valid DNS name'],
    [() => locker.acquire(name, { [name]: 1 }), 'there is no option'],
    [() => locker.acquire(name, { ttl: new Error(name) }), 'ttl is '],
    [() => locker.acquire(name, { signal: { [inspect.custom]: () => name } }), 'signal is a\\nb\\x1b'],
    [() => locker.using(name, {}, name), 'the work is '],
    [
      () => locker.using(name, () => locker.tryAcquire(name, { label: name })),
      "lock 'a\\nb\\x1b[2J\\u{2028}' is not free",
    ],
  ]) {
    await assert.rejects(async () => call(), (error) => {
      assert.ok(error.message.includes(says), error.message)
      assert.doesNotMatch(error.message, /[\p{Cc}\p{Zl}]/u)
      return true
    })
  }
  assert.equal(inspect(new Locker(['unix:///a%0Ab'])), 'Locker { /a\\nb }')
  const [foreign] = ['redis://größe.example'].map((url) => new Locker([url]))
  assert.equal(inspect(foreign), 'Locker { xn--gre-6ka8i.example:6379 }')
})

test('what is no signal is refused before anything is sent', async () => {
  // The request was sent, and a TypeError that nobody could catch ended the program.
  const locker = patient()
  for (const signal of [new AbortController(), null, 5, {}, 'x']) {
    const refused = { name: 'OptionError', message: /signal is .*: give an AbortSignal/s }
    await assert.rejects(locker.acquire('signal', { signal }), refused)
    await assert.rejects(locker.tryAcquire('signal', { signal }), refused)
    await assert.rejects(locker.acquireMany(['signal'], { signal }), refused)
  }
  await locker.settle()
  for (const { state, fence } of await locker.info('signal')) assert.deepEqual([state, fence], ['free', 0])
  await (await locker.acquire('signal', { signal: undefined })).release()
})

test('one signal ends any number of waits', async () => {
  const warnings = []
  const warn = (warning) => warnings.push(warning.name)
  process.on('warning', warn)
  const locker = patient()
  const guard = await locker.acquire('crowd')
  const controller = new AbortController()
  const { signal } = controller
  const waits = Array.from({ length: 100 }, () => locker.acquire('crowd', { signal }))
  await until('they stand in line', () => waiters('crowd', 100))
  assert.equal(getEventListeners(signal, 'abort').length, 1)
  // What is over leaves no listener behind.
  const other = new AbortController().signal
  await (await locker.acquire('crowd:other', { signal: other })).release()
  assert.equal(getEventListeners(other, 'abort').length, 0)
  controller.abort(new RangeError('enough'))
  for (const result of await Promise.allSettled(waits)) assert.ok(result.reason instanceof RangeError)
  assert.equal(getEventListeners(signal, 'abort').length, 0)
  await until('the line is empty', () => waiters('crowd', 0))
  await guard.release()
  process.off('warning', warn)
  assert.deepEqual(warnings, [])
})

test('the stack of an error leads to the caller', async () => {
  const locker = patient()
  const guard = await locker.acquire('stack')
  for (const call of [
    async function named() { await locker.acquire('stack', { wait: 0 }) },
    async function named() { await locker.tryAcquire('stack') },
    async function named() { await patient({ wait: 0 }).acquireMany(['stack']) },
    async function named() { await locker.using('stack', { wait: 0 }, () => {}) },
    async function named() { await guard.extend(1) },
    async function named() { new Locker([]) },
  ]) {
    const { stack } = await call().catch((error) => error)
    assert.match(stack, /at (async )?named/, stack)
    assert.doesNotMatch(stack, /errors\.js|native\.js/)
  }
  await guard.release()
})

test('several locks or none', async () => {
  const locker = patient()
  const guards = await locker.acquireMany(['b', 'a', 'b'])
  assert.deepEqual(guards.map(({ name }) => name), ['a', 'b'])
  await assert.rejects(patient({ wait: 0 }).acquireMany(['0', 'b']), HeldError)
  assert.deepEqual(await states(locker, '0'), new Set(['free']))
  await guards[0].release()
  guards[1].check()
  await guards[1].release()
})

test('the end of a block gives several locks back', async () => {
  const locker = patient()
  const free = async () => {
    await locker.settle()
    for (const name of ['many:a', 'many:b']) assert.deepEqual(await states(locker, name), new Set(['free']))
  }
  const wrong = locker.usingMany(['many:b'], { shared: ['many:a'] }, (guards) => {
    assert.ok(guards instanceof Guards && Array.isArray(guards))
    assert.deepEqual(guards.map((guard) => guard.exclusive), [false, true])
    throw new RangeError('mine')
  })
  await assert.rejects(wrong, RangeError)
  await free()
  // What was taken out stayed held.
  await locker.usingMany(['many:a', 'many:b'], (guards) => {
    for (const method of ['pop', 'shift', 'reverse']) assert.throws(() => guards[method](), TypeError)
  })
  await free()
  assert.equal(await locker.usingMany(['many:a', 'many:b'], async (guards, lost) => lost.aborted), false)
  await free()
  // As `await using` does, which this version of JavaScript may lack.
  const guards = await locker.acquireMany(['many:a', 'many:b'])
  await guards[Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')]()
  await free()
  // The loss of one of them stops the work, and the others are given back.
  const short = patient({ ttl: 1500, timeout: 400 })
  const lost = short.usingMany(['many:a', 'many:b'], async (guards, lost) => {
    await removeByForce('many:b')
    await sleep(PATIENCE, null, { signal: lost })
  })
  await assert.rejects(lost, { name: 'LostError', reason: 'removed' })
  await free()
})

test('what a subclass returns is released, whatever it lacks', async () => {
  class Own extends Locker {
    async acquire(...given) {
      const guard = await super.acquire(...given)
      return { release: () => guard.release() }
    }
  }
  const locker = new Own(urls(nodes), { timeout: 2000 })
  await assert.rejects(locker.using('own', () => {}), /check is not a function/)
  await locker.settle()
  assert.deepEqual(await states(locker, 'own'), new Set(['free']))
})

test('an extension may have a ttl of its own', async () => {
  const guard = await patient().acquire('extended', { renew: false })
  await guard.extend(60_000)
  assert.ok(50_000 < guard.validity && guard.validity < 60_000)
  await guard.extend(8000)
  assert.ok(guard.validity > 50_000)
  // Without renewal the timeout need not fit into it.
  const range = /give .*20 (ms )?to 86400000/
  for (const ttl of [1, 0, '5']) {
    await assert.rejects(guard.extend(ttl), { name: 'OptionError', message: range })
  }
  await guard.release()
  await assert.rejects(guard.extend(), LostError)
})

test('a loss is told in the asynchronous context of the caller who asked for it', async () => {
  const context = new AsyncLocalStorage()
  const guard = await patient().acquire('context')
  const told = new Promise((resolve) => {
    context.run('job 7', () => {
      guard.lost.addEventListener('abort', () => resolve(context.getStore()))
    })
  })
  await removeByForce('context')
  assert.equal(await told, 'job 7')
})

test('a guard that nobody has any more gives the lock back', async () => {
  const locker = patient()
  const fence = await (async () => {
    const guard = await locker.acquire('garbage')
    return guard.fence
  })()
  const guard = await until('it is collected', async () => {
    global.gc()
    await locker.settle()
    return locker.tryAcquire('garbage').catch(() => null)
  })
  assert.ok(guard.fence > fence)
  await guard.release()
})

test('whoever watches a lease keeps its lock, and is told of the loss', async () => {
  // The guard was collected, the lock was released, and the signal never said so: not even to a
  // function that awaited it, because nothing else refers to that.
  const locker = patient({ ttl: 1500, timeout: 400 })
  const reasons = []
  const watch = async (of) => {
    const guard = await locker.acquire('watched')
    const signal = of(guard.lost)
    await new Promise((resolve) => signal.addEventListener('abort', resolve))
    reasons.push(signal.reason.reason)
  }
  const never = new AbortController()
  const kinds = [(lost) => lost]
  if (AbortSignal.any) kinds.push((lost) => AbortSignal.any([lost, never.signal]))
  for (const of of kinds) {
    watch(of)
    await until('it is held', async () => (await states(locker, 'watched')).has('held'))
    for (let i = 0; i < 5; i++) {
      await sleep(10)
      global.gc()
    }
    await locker.settle()
    assert.deepEqual(await states(locker, 'watched'), new Set(['held']))
    await removeByForce('watched')
    await until('it is told', () => reasons.length === kinds.indexOf(of) + 1)
  }
  assert.deepEqual(new Set(reasons), new Set(['removed']))
})

test('the lock outlives an event loop that is blocked, and a loss is told after it', async () => {
  const locker = patient({ ttl: 1200, timeout: 400 })
  const guard = await locker.acquire('blocked')
  // The quorum has it; after this, the last node has it too.
  await locker.settle()
  block(4000)
  guard.check()
  const told = await nodes[0].info('blocked')
  assert.ok(told.fence === guard.fence && told.held_for_ms >= 4000)
  const heard = new Promise((resolve) => guard.lost.addEventListener('abort', () => resolve(Date.now())))
  for (const node of nodes) node.pause()
  block(2000)
  const awake = Date.now()
  assert.ok(guard.isLost)
  assert.ok((await heard) - awake < 3000)
})

test('work is not begun under a lease that has ended', async () => {
  // Regression: after a pause of the process, the work ran to its end, and was never told.
  const brief = { ttl: 1200, timeout: 400, maxHold: 600 }
  const begins = () => assert.fail('the lease has ended')
  for (const start of [
    (locker) => locker.using('ended', begins),
    (locker) => locker.usingMany(['ended', 'ended too'], begins),
  ]) {
    const used = start(patient(brief))
    // Begun in this turn of the loop, and granted while it is blocked.
    await null
    block(1500)
    await assert.rejects(used, { name: 'LostError', reason: 'max_hold' })
  }
  assert.equal((await nodes[0].info('ended')).state, 'free')
})

test('a wait that is aborted leaves nothing behind', async () => {
  const locker = patient()
  const guard = await locker.acquire('aborted')
  const controller = new AbortController()
  const waiting = locker.acquire('aborted', { signal: controller.signal })
  await until('it stands in line', () => waiters('aborted', 1))
  controller.abort(new RangeError('enough'))
  await assert.rejects(waiting, RangeError)
  await until('the line is empty', () => waiters('aborted', 0))
  await guard.release()
  await assert.rejects(locker.acquire('aborted', { signal: AbortSignal.abort() }), { name: 'AbortError' })
  assert.deepEqual(await states(locker, 'aborted'), new Set(['free']))
})

test('an abort at any moment leaves nothing behind', async () => {
  const locker = patient()
  let aborted = 0
  for (let i = 0; i < 150; i++) {
    const controller = new AbortController()
    const task = locker.acquire('any', { signal: controller.signal })
    const start = performance.now()
    const pause = Math.random() * 2
    while (performance.now() - start < pause) await new Promise(setImmediate)
    controller.abort()
    const guard = await task.catch(() => null)
    if (guard === null) aborted += 1
    else await guard.release()
    // The one before leaves nothing in the way for long.
    await locker.using('any', () => {})
  }
  assert.ok(aborted > 5)
  await locker.settle()
  await (await locker.tryAcquire('any')).release()
})

test('a result that arrives for somebody who has gone is given back', async () => {
  const locker = patient()
  const controller = new AbortController()
  const task = locker.acquire('late', { signal: controller.signal })
  // It is granted while the loop is blocked, and aborted before it is looked at.
  const info = ['-p', String(nodes[0].port), 'LOCK.INFO', 'late']
  const deadline = Date.now() + PATIENCE
  while (!String(spawnSync('redis-cli', info).stdout).includes('held')) assert.ok(Date.now() < deadline)
  block(100)
  controller.abort()
  await assert.rejects(task, { name: 'AbortError' })
  await locker.settle()
  await (await locker.tryAcquire('late')).release()
})

const program = (text) => {
  const prelude = `const { Locker } = require('lockmod')
    const locker = new Locker(${JSON.stringify(urls(nodes))}, { timeout: 2000, wait: ${PATIENCE} })`
  const { status, stdout, stderr } = spawnSync(process.execPath, ['-e', prelude + text], { timeout: PATIENCE })
  return { status, out: String(stdout).trim(), err: String(stderr) }
}

test('a program that ends leaves nothing behind, and is not kept from ending', async () => {
  const locker = patient()
  const hold = "\nlocker.acquire('ended').then((guard) => console.log(guard.lost.aborted, guard.fence))"
  for (const end of ['', '.then(() => process.exit())', '.then(() => { throw new Error() })']) {
    const { out } = program(`${hold}${end}`)
    assert.match(out, /^false \d+$/, end)
    assert.deepEqual(await states(locker, 'ended'), new Set(['free']), end)
  }
  // A pending call keeps it alive.
  const other = await locker.acquire('waited', { ttl: 7000, renew: false })
  const waited = program("\nlocker.acquire('waited').then((guard) => console.log(guard.fence))")
  assert.equal(waited.out, String(other.fence + 1), waited.err)
  const kept = program("\nlocker.acquire('kept').then((guard) => guard.keep())")
  assert.equal(kept.status, 0, kept.err)
  assert.deepEqual(await states(locker, 'kept'), new Set(['held']))
})

test('a program that ends sends the releases of its last turn', async () => {
  const begun = Date.now()
  const { status, err } = program(`;(async () => {
    const guards = []
    for (let at = 0; at < 5; at++) guards.push(await locker.acquire('last-' + at))
    for (const guard of guards) guard.release()
    process.exit(0)
  })()`)
  assert.equal(status, 0, err)
  assert.ok(Date.now() - begun < PATIENCE)
  for (let at = 0; at < 5; at++) {
    for (const node of nodes) assert.notEqual((await node.info(`last-${at}`)).state, 'held')
  }
})

test('a worker thread has locks of its own, which end with it', async () => {
  const text = `const { Locker } = require('lockmod')
    const { parentPort, workerData } = require('node:worker_threads')
    new Locker(workerData, { timeout: 2000, ttl: 20_000 }).acquire('thread').then((guard) => {
      globalThis.guard = guard
      parentPort.postMessage(guard.fence)
      setInterval(() => {}, 1000)
    })`
  const worker = new Worker(text, { eval: true, workerData: urls(nodes) })
  const fence = await new Promise((resolve, reject) => worker.once('message', resolve).once('error', reject))
  const locker = patient()
  const mine = await locker.acquire('main')
  await assert.rejects(locker.tryAcquire('thread'), HeldError)
  await worker.terminate()
  const guard = await locker.acquire('thread')
  assert.ok(guard.fence > fence)
  mine.check()
  assert.equal((await nodes[0].info('main')).fence, mine.fence)
  await Promise.all([guard.release(), mine.release()])
})

test('a lock that arrives for an aborted call needs no further turn of the loop', async () => {
  // The loop was blocked after the abort: the lock was held and renewed, and nobody had it.
  const shared = new Int32Array(new SharedArrayBuffer(8))
  const [HELD, FREE] = [0, 1]
  const text = `const { Locker } = require('lockmod')
    const { workerData: [urls, shared] } = require('node:worker_threads')
    const tell = (place) => { Atomics.store(shared, place, 1); Atomics.notify(shared, place) }
    const locker = new Locker(urls, { timeout: 2000, ttl: 20_000 })
    const look = async () => {
      const states = (await locker.info('aborted')).map((told) => told.state)
      if (states[0] !== 'held') return look()
      tell(${HELD})
      const guard = await locker.acquire('aborted', { wait: Infinity })
      tell(${FREE})
      await guard.release()
    }
    look()`
  const locker = patient()
  const controller = new AbortController()
  const call = locker.acquire('aborted', { signal: controller.signal })
  // It is on its way; what comes of it is not looked at before the abort.
  await Promise.resolve()
  const worker = new Worker(text, { eval: true, workerData: [urls(nodes), shared] })
  process.nextTick(() => {
    Atomics.wait(shared, HELD, 0, PATIENCE)
    block(50)
    controller.abort()
    Atomics.wait(shared, FREE, 0, PATIENCE)
  })
  await assert.rejects(call, { name: 'AbortError' })
  assert.deepEqual([...shared], [1, 1])
  await new Promise((resolve) => worker.once('exit', resolve))
})

test('a worker thread that ends while it waits leaves no place in line', async () => {
  const text = `const { Locker } = require('lockmod')
    const { workerData } = require('node:worker_threads')
    new Locker(workerData, { timeout: 2000, ttl: 20_000 }).acquire('thread-waits', { wait: Infinity })`
  const locker = patient()
  const guard = await locker.acquire('thread-waits')
  const worker = new Worker(text, { eval: true, workerData: urls(nodes) })
  await until('it waits', () => waiters('thread-waits', 1))
  await worker.terminate()
  await until('nobody waits', () => waiters('thread-waits', 0))
  await guard.release()
})

test('a program that exits while it acquires leaves nothing behind', async () => {
  const program = `const { Locker } = require('lockmod')
    const locker = new Locker(${JSON.stringify(urls(nodes))}, { timeout: 2000 })
    locker.acquire('exits').then(() => {
      for (let count = 0; count < 3; count++) locker.acquire('exits', { wait: Infinity })
      locker.acquire('exits-too')
      setImmediate(() => process.exit(0))
    })`
  const { status, stderr } = spawnSync(process.execPath, ['-e', program], { encoding: 'utf8' })
  assert.equal(status, 0, stderr)
  for (const name of ['exits', 'exits-too']) assert.deepEqual(await states(patient(), name), new Set(['free']))
})

test('a locker that is closed ends its connections with its last guard', async () => {
  const connections = async () => {
    const told = await Promise.all(nodes.map((node) => node.run('CLIENT', 'LIST')))
    return told.join().split(' user=closing ').length - 1
  }
  for (const node of nodes) await node.run('ACL', 'SETUSER', 'closing', 'on', '>pw', '~*', '&*', '+@all')
  const list = urls(nodes).map((url) => url.replace('://', '://closing:pw@'))
  const locker = new Locker(list, { ttl: 1500, timeout: 400 })
  const guard = await locker.acquire('closing')
  assert.ok((await connections()) >= 3)
  const waiting = locker.acquire('closing', { wait: PATIENCE })
  await until('it waits', () => waiters('closing', 1))
  // Older versions of Node.js lack the symbols.
  for (const end of ['close', Symbol.dispose, Symbol.asyncDispose]) await locker[end ?? 'close']()
  const closed = { name: 'RefusedError', message: /^the locker is closed: make another one/ }
  for (const refused of [
    () => locker.acquire('closing'),
    () => locker.tryAcquire('closing'),
    () => locker.acquireMany(['closing']),
    () => locker.using('closing', () => {}),
    () => locker.usingMany(['closing'], () => {}),
    () => locker.info('closing'),
    () => locker.settle(),
  ]) {
    await assert.rejects(refused, closed)
  }
  assert.match(inspect(locker), /^Locker { 127/)
  await sleep(2000)
  guard.check()
  await guard.extend()
  await guard.release()
  const late = await waiting
  assert.equal(late.fence, guard.fence + 1)
  await late.release()
  // All objects still exist.
  await until('the connections have ended', async () => (await connections()) === 0)
  assert.ok(late.isLost && guard.isLost && locker)
  // One after the other, as for each request: they were ended by the garbage collection.
  for (let count = 0; count < 20; count++) {
    const short = new Locker(list, { timeout: 400 })
    await short.using(`closing:${count}`, () => {})
    short.close()
  }
  await until('the connections have ended', async () => (await connections()) === 0)
  const redlock = new Redlock(list)
  const lock = await redlock.acquire(['closing'], 5000)
  await redlock.quit()
  assert.ok((await connections()) >= 3)
  await lock.release()
  await until('the connections have ended', async () => (await connections()) === 0)
})

test('who holds it is told without touching it', async () => {
  const locker = patient()
  const guard = await locker.acquire('told', { label: 'worker-7' })
  for (const { state, label, fence, vote } of await locker.info('told')) {
    assert.deepEqual([state, label, fence, vote], ['held', 'worker-7', guard.fence, undefined])
  }
  await nodes[2].kill()
  const vote = await until('it is gone', async () => (await locker.info('told'))[2].vote)
  assert.equal(vote.vote, 'unreachable')
})

test('a server without the module refuses', async () => {
  const others = [new Node(), new Node()]
  await Promise.all(others.map((node) => node.start({ withModule: false })))
  try {
    const locker = new Locker(urls([nodes[0], ...others]), { timeout: 2000 })
    await assert.rejects(locker.acquire('none'), RefusedError)
  } finally {
    await Promise.all(others.map((node) => node.remove()))
  }
})
