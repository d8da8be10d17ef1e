'use strict'

// What the native part gives is what is declared, and lengths of time are in milliseconds.

const assert = require('node:assert/strict')
const { readFileSync } = require('node:fs')
const { join } = require('node:path')
const { test } = require('node:test')
const { setTimeout: sleep } = require('node:timers/promises')
const { PATIENCE, three, until, urls } = require('./nodes.js')
const { ASKED, MANY, SETTINGS } = require('../lib/options.js')
const lockmod = require('lockmod')

const nodes = three()
const types = readFileSync(join(__dirname, '..', 'index.d.ts'), 'utf8')

/** The members that index.d.ts declares of a class or an interface itself, in order. */
function declared(name) {
  const [, head] = types.split(new RegExp(`^export (?:class|interface) ${name}\\b`, 'm'))
  const body = head.split(/\{\}$|^\}/m)[0]
  const found = [...body.matchAll(/^  (?:readonly )?(\w+)(?:<\w+>)?\??[:(]/gm)]
  const members = found.map((match) => match[1])
  return [...new Set(members)].filter((member) => member !== 'constructor').sort()
}

/** The fields that one of these objects has, in order. */
const given = (objects) => [...new Set(objects.flatMap((object) => Object.keys(object)))].sort()

/** Whether it can be a length of so many milliseconds: in seconds it would be too few. */
const isMilliseconds = (value, least) => least <= value && value < 1000 * PATIENCE

test('all fields are given, and lengths are in milliseconds', async () => {
  const locker = new lockmod.Locker(urls(nodes), { ttl: 10_000, timeout: 2000, wait: PATIENCE })
  const guard = await locker.acquire('fields', { label: 'worker-7' })
  const reader = await locker.acquire('fields:read', { label: 'reader', shared: true })
  const waiting = locker.acquire('fields', { shared: true })
  await until('it waits', async () => (await locker.info('fields')).every(({ waiters }) => waiters === 1))
  await sleep(100)
  const held = await locker.acquire('fields', { wait: 100 }).catch((error) => error)
  const infos = await locker.info('fields')
  assert.ok(isMilliseconds(guard.validity, 1000) && guard.validity <= 10_000)
  assert.ok(isMilliseconds(held.waited, 100), `${held.waited}`)
  for (const { left, heldFor } of [...infos, ...held.nodes, held]) {
    assert.ok(isMilliseconds(left, 1000) && left <= 10_000, `${left}`)
    assert.ok(isMilliseconds(heldFor, 100), `${heldFor}`)
  }
  for (const { firstWaiting } of infos) assert.ok(isMilliseconds(firstWaiting, 100), `${firstWaiting}`)

  for (const node of nodes.slice(1)) node.pause()
  const other = new lockmod.Locker(urls(nodes), { ttl: 10_000, timeout: 500 })
  const silent = await other.info('fields')
  assert.deepEqual(given([...infos, ...silent]), declared('NodeInfo'))
  const failed = await other.tryAcquire('fields:none').catch((error) => error)
  // Only a Cluster, or a group under Sentinel, has a master.
  const votes = declared('NodeVote').filter((field) => field !== 'master')
  assert.deepEqual(given([...held.nodes, ...failed.nodes]), votes)
  for (const node of nodes) node.resume()
  await guard.release()
  await (await waiting).release()
  await reader.release()
})

test('whoever reads how to give a time reads its unit', () => {
  const readme = readFileSync(join(__dirname, '..', 'README.md'), 'utf8')
  const use = readme.split('## Use')[1].split('\n## ')[0]
  assert.match(use, /ttl: 10_000 \}\) \/\/ ms$/m)
  for (const text of [use, types]) assert.match(text, /lengths of time are in milliseconds/)
})

test('classes have the members that are declared', () => {
  for (const name of ['Locker', 'Guard']) {
    const members = Object.getOwnPropertyNames(lockmod[name].prototype)
    assert.deepEqual(members.filter((member) => member !== 'constructor').sort(), declared(name))
  }
  const common = declared('LockError')
  for (const name of Object.keys(lockmod).filter((name) => name.endsWith('Error'))) {
    const error = new lockmod[name]()
    const getters = Object.getOwnPropertyNames(lockmod[name].prototype)
    const members = [...Object.keys(error), ...getters].filter((member) => member !== 'constructor')
    const inherited = name === 'LockError' ? ['name'] : []
    const described = [...new Set([...common, ...declared(name), ...inherited])]
    assert.deepEqual(members.sort(), described.sort(), name)
  }
})

test('options are those that are declared', () => {
  const asked = declared('AcquireOptions')
  assert.deepEqual(Object.keys(SETTINGS).sort(), declared('LockerOptions'))
  assert.deepEqual(Object.keys(ASKED).sort(), asked)
  assert.deepEqual(Object.keys(MANY).sort(), asked)
})
