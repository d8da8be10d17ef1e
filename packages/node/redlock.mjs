import redlock from './redlock.js'

export const { ExecutionError, Lock, Redlock, ResourceLockedError } = redlock
export default Redlock
