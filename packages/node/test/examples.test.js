'use strict'

// The programs of examples/node do what they say.

const assert = require('node:assert/strict')
const { spawn } = require('node:child_process')
const { cpSync, mkdirSync, mkdtempSync, readFileSync } = require('node:fs')
const { readdirSync, rmSync, symlinkSync } = require('node:fs')
const { tmpdir } = require('node:os')
const { join } = require('node:path')
const { after, test } = require('node:test')
const { PATIENCE, three, until, urls } = require('./nodes.js')
const { Locker } = require('lockmod')

const nodes = three()
const patient = () => new Locker(urls(nodes), { ttl: 10_000, timeout: 2000, wait: PATIENCE })
const folder = mkdtempSync(join(tmpdir(), 'lockmod-examples-'))
const source = join(__dirname, '../../../examples/node')
cpSync(source, folder, { recursive: true })
symlinkSync(process.env.NODE_PATH, join(folder, 'node_modules'))
const running = new Set()
after(() => {
  for (const program of running) program.kill('SIGKILL')
  rmSync(folder, { recursive: true, force: true })
})

/** Collects the program's output in `said`; `ended` is resolved when it ends. */
function start(program, ...given) {
  const env = { ...process.env, LOCKMOD_NODES: urls(nodes).join() }
  const stdio = ['ignore', 'pipe', 'inherit']
  const child = spawn(process.execPath, [join(folder, program), ...given], { env, stdio })
  running.add(child)
  child.said = ''
  child.stdout.on('data', (data) => (child.said += data))
  child.ended = new Promise((resolve) => child.once('close', resolve))
  return child
}

// They failed with ERR_MODULE_NOT_FOUND where they lie.
test('the commands of their comments run them in a clone', async () => {
  // The package is built already, and is among no modules but those of the clone.
  const env = { ...process.env, npm_config_ignore_scripts: 'true', npm_config_offline: 'true' }
  delete env.NODE_PATH
  for (const name of readdirSync(source)) {
    const clone = mkdtempSync(join(tmpdir(), 'lockmod-clone-'))
    cpSync(source, join(clone, 'examples/node'), { recursive: true })
    mkdirSync(join(clone, 'packages'))
    symlinkSync(join(__dirname, '..'), join(clone, 'packages/node'))
    const run = async (line) => {
      const command = line.slice(2).trim().replace(/=redis:\S+/, `=${urls(nodes).join()}`)
      const stdio = ['ignore', 'pipe', 'inherit']
      const child = spawn('sh', ['-c', `exec env ${command}`], { cwd: clone, env, stdio })
      running.add(child)
      let said = ''
      for await (const data of child.stdout) {
        said += data
        // Some go on.
        if (/^(listening on|.*under fence) \d/m.test(said)) child.kill('SIGKILL')
      }
      return said
    }
    const text = readFileSync(join(source, name), 'utf8')
    const [install, start] = text.match(/^\/\/ {5}(npm|LOCKMOD_NODES=redis:\S+7003) .*/gm)
    await run(install)
    assert.ok(start.includes(` node examples/node/${name}`), start)
    assert.match(await run(start), /^(listening on|.*under fence) \d/m, name)
    assert.deepEqual(readdirSync(clone).sort(), ['examples', 'node_modules', 'packages'])
    rmSync(clone, { recursive: true, force: true })
  }
})

test('the web handler serves one at a time', async () => {
  const server = start('web.mjs', '0')
  await until('it listens', () => server.said.includes('\n'))
  const url = `http://127.0.0.1:${server.said.trim().split(' ').at(-1)}/account/17`
  const post = async () => {
    const response = await fetch(url, { method: 'POST' })
    return [response.status, await response.text()]
  }
  const [status, text] = await post()
  assert.equal(status, 200)
  assert.match(text, /under fence/)
  const guard = await patient().acquire('account:17', { label: 'a-colleague' })
  const [busy, why] = await post()
  assert.equal(busy, 409)
  assert.match(why, /for a-colleague/)
  await guard.release()
})

test('the worker leaves what another has', async () => {
  const guard = await patient().acquire('task:b', { label: 'a-colleague' })
  const worker = start('worker.mjs', 'a', 'b', 'c')
  assert.equal(await worker.ended, 0)
  const lines = worker.said.trim().split('\n')
  assert.equal(lines.length, 7)
  assert.ok(lines.includes('b: left to a-colleague'))
  assert.equal(lines.filter((line) => line.startsWith('c: step')).length, 3)
  await guard.release()
})

test('the scheduled job runs on one host', async () => {
  const first = start('scheduled.mjs', '600')
  await until('it is at work', () => first.said.includes('under fence'))
  const second = start('scheduled.mjs', '0')
  await second.ended
  assert.match(second.said, /^left to /)
  first.kill('SIGKILL')
})
