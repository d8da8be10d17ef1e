export * from './redlock.js'
export { Redlock as default } from './redlock.js'
