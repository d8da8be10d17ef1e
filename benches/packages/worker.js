'use strict'

// Measures in Node.js what main.rs asks for, line by line: word,tasks,seconds.

const { createInterface } = require('node:readline')
const { setTimeout: sleep } = require('node:timers/promises')
const { Redis } = require('ioredis')
const { Locker } = require('lockmod')
const { default: Redlock } = require('redlock')

const urls = process.argv.slice(2)
const locker = new Locker(urls)
const redlock = new Redlock(urls.map((url) => new Redis(url)))
const NAMES_PER_TASK = 1000

const cycles = {
  node: async (name) => (await locker.acquire(name)).release(),
  'node-redlock': async (name) => (await redlock.acquire([name], 30_000)).release(),
}

/** Cycles per second of so many tasks, each with locks of its own. */
async function rate(word, tasks, seconds) {
  const start = performance.now()
  let count = 0
  const one = async (_, task) => {
    for (let i = 0; performance.now() - start < seconds * 1000; i++) {
      await cycles[word](`${word}:${task}:${i % NAMES_PER_TASK}`)
      count += 1
    }
  }
  await Promise.all(Array.from({ length: tasks }, one))
  return (count * 1000) / (performance.now() - start)
}

/** Seconds until all who are after one lock have had it in turn. */
async function line(holders, seconds) {
  const start = performance.now()
  const one = () => locker.using('line', () => sleep(seconds * 1000))
  await Promise.all(Array.from({ length: holders }, one))
  return (performance.now() - start) / 1000
}

async function main() {
  for await (const asked of createInterface({ input: process.stdin })) {
    const [word, tasks, seconds] = asked.split(',')
    const figure = word === 'line node' ? line : (...given) => rate(word, ...given)
    console.log(await figure(Number(tasks), Number(seconds)))
  }
  process.exit()
}

main()
