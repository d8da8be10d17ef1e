'use strict'

// Readers and writers.

const assert = require('node:assert/strict')
const { test } = require('node:test')
const { setTimeout: sleep } = require('node:timers/promises')
const { PATIENCE, three, until, urls } = require('./nodes.js')
const { HeldError, Locker, LostError, NoQuorumError, OptionError } = require('lockmod')

const nodes = three()
// A busy machine may be slow to answer; every test that needs less says so.
const patient = (options = {}) =>
  new Locker(urls(nodes), { ttl: 10_000, timeout: 2000, wait: PATIENCE, ...options })
const told = (name) => Promise.all(nodes.map((node) => node.info(name)))
const waiters = async (name, count) => (await told(name)).every((told) => told.waiters === count)
const readers = async (name, count) => (await told(name)).every((told) => (told.readers ?? 0) === count)

test('readers hold it together, and a writer waits for all of them', async () => {
  const locker = patient()
  const before = await locker.acquire('together')
  await before.release()
  const one = await locker.acquire('together', { shared: true })
  const two = await locker.tryAcquire('together', { shared: true })
  assert.deepEqual([before.exclusive, one.exclusive, two.exclusive], [false, false, false])
  assert.ok(one.fence >= before.fence && two.fence >= before.fence)
  let writer
  const waiting = locker.acquire('together').then((guard) => (writer = guard))
  await until('the writer waits', () => waiters('together', 1))
  // The writer was there before.
  await assert.rejects(locker.tryAcquire('together', { shared: true }), HeldError)
  await one.release()
  await until('one reads', () => readers('together', 1))
  assert.equal(writer, undefined)
  two.check()
  await two.release()
  await waiting
  assert.ok(writer.exclusive && writer.fence > Math.max(one.fence, two.fence))
  await writer.release()
  assert.equal(writer.exclusive, false)
  await locker.using('together', { shared: true }, (guard) => {
    assert.ok(!guard.exclusive && guard.fence >= writer.fence)
  })
})

test('a downgrade lets readers in, and no writer', async () => {
  const locker = patient()
  const guard = await locker.acquire('downgrade')
  const waiting = [1, 2, 3].map(() => locker.acquire('downgrade', { shared: true }))
  await until('they wait', () => waiters('downgrade', 3))
  await sleep(50)
  for (const { waitingReaders, firstWaiting } of await locker.info('downgrade')) {
    assert.equal(waitingReaders, 3)
    assert.ok(firstWaiting >= 50 && firstWaiting < 30_000, `${firstWaiting} ms`)
  }
  assert.equal(guard.exclusive, true)
  await guard.downgrade()
  await guard.downgrade() // stays a reader
  assert.equal(guard.exclusive, false)
  const guards = await Promise.all(waiting)
  assert.deepEqual(guards.map(({ fence }) => fence), Array(3).fill(guard.fence))
  await assert.rejects(locker.tryAcquire('downgrade'), HeldError)
  await guard.extend()
  await Promise.all([guard, ...guards].map((guard) => guard.release()))
  const writer = await locker.tryAcquire('downgrade')
  assert.ok(writer.fence > guard.fence)
  await writer.release()
})

test('whose lease has ended becomes no reader', async () => {
  const locker = patient({ ttl: 1500, timeout: 400, renew: false })
  const guard = await locker.acquire('ended')
  await Promise.all(nodes.map((node) => node.run('DEL', 'ended')))
  await assert.rejects(guard.downgrade(), { name: 'LostError', reason: 'removed' })
  assert.equal(guard.exclusive, false)
  const next = await locker.acquire('ended')
  await next.release()
  await assert.rejects(next.downgrade(), LostError)
})

test('a downgrade without a quorum is one all the same', async () => {
  const locker = patient({ timeout: 500, renew: false })
  const guard = await locker.acquire('alone')
  nodes[0].pause()
  nodes[1].pause()
  await assert.rejects(guard.downgrade(), NoQuorumError)
  assert.equal(guard.exclusive, false)
  guard.check() // what was valid stays valid
  nodes[0].resume()
  nodes[1].resume()
  // From here on every extension tells the nodes.
  await until('a quorum hears of it', () => guard.extend().then(() => true, () => false))
  await until('all know', () => readers('alone', 1))
  await guard.release()
})

test('errors and infos say who reads', async () => {
  const [locker, other] = [patient(), patient({ wait: 0 })]
  const guard = await locker.acquire('said', { label: 'writer-1' })
  const held = await other.acquire('said', { shared: true }).catch((error) => error)
  assert.ok(held instanceof HeldError)
  assert.equal(held.label, 'writer-1')
  assert.match(held.message, /for writer-1/)
  for (const { readers, readerLabels } of await locker.info('said')) {
    assert.deepEqual([readers, readerLabels], [0, []])
  }
  for (const { firstWaiting } of await locker.info('said')) assert.equal(firstWaiting, undefined)
  await guard.downgrade()
  const reader = await other.acquire('said', { shared: true, label: 'reader-2' })
  await assert.rejects(other.acquire('said'), { name: 'HeldError', label: 'writer-1' })
  for (const { state, label, readers, readerLabels, waiters } of await locker.info('said')) {
    const said = [state, label, readers, readerLabels, waiters]
    assert.deepEqual(said, ['held', 'writer-1', 2, ['writer-1', 'reader-2'], 0])
  }
  await Promise.all([guard.release(), reader.release()])
})

test('several locks of both kinds', async () => {
  const [locker, other] = [patient(), patient({ wait: 0 })]
  const guards = await locker.acquireMany(['stock'], { shared: ['catalogue', 'stock'] })
  const kinds = guards.map(({ name, exclusive }) => [name, exclusive])
  assert.deepEqual(kinds, [['catalogue', false], ['stock', true]])
  await assert.rejects(other.acquireMany(['0'], { shared: ['catalogue', 'stock'] }), HeldError)
  for (const { state } of await locker.info('0')) assert.equal(state, 'free')
  for (const { readers } of await locker.info('catalogue')) assert.equal(readers, 1)
  const [beside] = await other.acquireMany([], { shared: new Set(['catalogue']) })
  assert.equal(beside.exclusive, false)
  await Promise.all([beside, ...guards].map((guard) => guard.release()))
  // The letters of a string are not names, and options have types.
  for (const wrong of ['stock', Buffer.from('stock'), 5, undefined]) {
    await assert.rejects(locker.acquireMany(wrong), { name: 'OptionError', message: /a list of names/ })
  }
  for (const shared of ['stock', true, null]) {
    await assert.rejects(locker.acquireMany(['stock'], { shared }), OptionError)
  }
  await assert.rejects(locker.acquire('stock', { shared: 'yes' }), /shared is 'yes', of type string: give true or false/)
  assert.throws(() => patient({ shared: true }), /no option 'shared'/)
})

test('nodes that forgot are given their readers back', async () => {
  const locker = patient({ ttl: 1500, timeout: 400 })
  const guards = [1, 2].map(() => locker.acquire('forgotten', { shared: true }))
  const [one, two] = await Promise.all(guards)
  await nodes[0].run('DEL', 'forgotten')
  await until('both are back', () => readers('forgotten', 2))
  one.check()
  two.check()
  await assert.rejects(locker.tryAcquire('forgotten'), HeldError)
  await Promise.all([one.release(), two.release()])
})

test('readers behind a writer who gives up come in', async () => {
  const locker = patient()
  const holds = await locker.acquire('behind', { shared: true })
  const wait = (options) => {
    const controller = new AbortController()
    const waiting = locker.acquire('behind', { ...options, signal: controller.signal })
    return { waiting, leave: () => controller.abort() }
  }
  const writer = wait({})
  await until('the writer waits', () => waiters('behind', 1))
  const [reader, leaves] = [wait({ shared: true }), wait({ shared: true })]
  await until('all wait', () => waiters('behind', 3))
  leaves.leave()
  await assert.rejects(leaves.waiting, { name: 'AbortError' })
  await until('one has left', () => waiters('behind', 2))
  writer.leave()
  await assert.rejects(writer.waiting, { name: 'AbortError' })
  const guard = await reader.waiting
  assert.equal(guard.fence, holds.fence)
  await Promise.all([holds.release(), guard.release()])
  await locker.settle()
  for (const { state } of await locker.info('behind')) assert.equal(state, 'free')
})
