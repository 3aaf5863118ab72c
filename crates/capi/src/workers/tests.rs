use std::sync::Mutex as Lock;
use std::thread;
use std::time::Duration;

use super::*;

/// Index, task and data of a call that is made too late.
static LATE: Lock<Option<usize>> = Lock::new(None);

fn engine(parallel_for: unsafe extern "C" fn(*mut c_void, usize, va_task, *mut c_void)) -> Workers {
    let context = std::ptr::null_mut();
    let size = size_of::<va_workers>();
    let workers = va_workers { size, threads: 0, parallel_for: Some(parallel_for), context };
    // SAFETY: the function is one of those below.
    unsafe { workers_from(&raw const workers, "workers") }.unwrap()
}

/// Runs each task on a thread of its own, the last index first.
unsafe extern "C" fn on_threads(_: *mut c_void, count: usize, task: va_task, data: *mut c_void) {
    let data = data.addr();
    thread::scope(|scope| {
        for index in (0..count).rev() {
            // SAFETY: the library gave the task and its data.
            let call =
                move || unsafe { task.unwrap()(std::ptr::without_provenance_mut(data), index) };
            scope.spawn(call);
        }
    });
}

/// Returns while tasks run, repeats one, leaves out others, and stores the data.
unsafe extern "C" fn carelessly(_: *mut c_void, _: usize, task: va_task, data: *mut c_void) {
    let data = data.addr();
    *LATE.lock().unwrap() = Some(data);
    for _ in 0..2 {
        // SAFETY: the library gave the task and its data.
        thread::spawn(move || unsafe { task.unwrap()(std::ptr::without_provenance_mut(data), 1) });
    }
    thread::sleep(Duration::from_millis(20));
}

fn squares(workers: &Workers, work: Vec<u64>) -> Vec<u64> {
    workers.map(work, |x| {
        thread::sleep(Duration::from_millis(40));
        x * x
    })
}

#[test]
fn tasks_run_on_the_engines_threads() {
    let here = thread::current().id();
    let threads = engine(on_threads).map(vec![(); 5], |()| thread::current().id());
    assert!(threads.iter().all(|&thread| thread != here));
    assert_eq!(squares(&engine(on_threads), vec![1, 2, 3]), [1, 4, 9]);
}

/// Wrong calls are harmless: the results are complete, and a late call finds no job.
#[test]
fn careless_engines_get_the_same_results() {
    assert_eq!(squares(&engine(carelessly), vec![1, 2, 3]), [1, 4, 9]);
    let data = LATE.lock().unwrap().take().unwrap();
    // SAFETY: the task checks its data.
    unsafe { run_task(std::ptr::without_provenance_mut(data), 0) };
}

#[test]
fn a_panic_of_a_task_reaches_the_caller() {
    let workers = engine(on_threads);
    let run = || workers.map(vec![0, 1, 2], |x| assert_ne!(x, 1, "the task fails"));
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
    assert_eq!(squares(&workers, vec![5, 6]), [25, 36], "the workers can be used again");
}

#[test]
fn numbers_of_threads_and_a_function_exclude_each_other() {
    let (size, context) = (size_of::<va_workers>(), std::ptr::null_mut());
    let read = |threads, parallel_for| {
        let workers = va_workers { size, threads, parallel_for, context };
        // SAFETY: the function is one of those above.
        unsafe { workers_from(&raw const workers, "workers") }
    };
    assert!(matches!(read(0, None), Ok(Workers::Global)));
    assert!(matches!(read(1, None), Ok(Workers::Serial)));
    assert!(matches!(read(2, None), Ok(Workers::Own(_))));
    let error = read(2, Some(on_threads)).unwrap_err();
    assert!(error.message.contains("threads = 0 with parallel_for"), "{}", error.message);
}
