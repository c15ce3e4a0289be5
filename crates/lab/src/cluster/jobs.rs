//! Jobs: pods that run to their end, again when they fail.

use super::Cluster;
use trysail_api::k8s_openapi::api::batch::v1::{Job, JobStatus};
use trysail_api::k8s_openapi::api::core::v1::Pod;
use trysail_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use trysail_api::object::{Kind, Object};

/// How often a Job's pod may fail, when the Job does not say.
const BACKOFF_LIMIT: i32 = 6;

impl Cluster {
    pub(super) async fn jobs(&mut self) {
        let jobs: Vec<Job> = self
            .store
            .list(Kind::Job, None)
            .into_iter()
            .filter_map(|o| match o {
                Object::Job(job) => Some((**job).clone()),
                _ => None,
            })
            .collect();
        for job in jobs {
            self.job(job);
        }
    }

    fn job(&mut self, job: Job) {
        let uid = job.metadata.uid.clone().unwrap_or_default();
        let mine = |p: &&&Pod| p.metadata.owner_references.iter().flatten().any(|o| o.uid == uid);
        let phase = |p: &Pod| p.status.as_ref().and_then(|s| s.phase.clone()).unwrap_or_default();
        let phases: Vec<String> = self.all_pods().iter().filter(mine).map(|p| phase(p)).collect();
        let count = |wanted: &str| i32::try_from(phases.iter().filter(|p| *p == wanted).count()).unwrap_or(i32::MAX);
        let (succeeded, failed) = (count("Succeeded"), count("Failed"));
        let active = i32::try_from(phases.len()).unwrap_or(i32::MAX) - succeeded - failed;
        let Some(spec) = &job.spec else { return };
        let (completions, parallel) = (spec.completions.unwrap_or(1), spec.parallelism.unwrap_or(1));
        let over = failed > spec.backoff_limit.unwrap_or(BACKOFF_LIMIT);
        let missing = (completions - succeeded - active).min(parallel - active);
        for _ in 0..if over { 0 } else { missing.max(0) } {
            let pod = pod(&job);
            self.put(Object::Pod(Box::new(pod)));
        }
        let status = JobStatus {
            active: Some(active),
            succeeded: Some(succeeded),
            failed: Some(failed),
            completion_time: (succeeded >= completions)
                .then(|| job.status.as_ref().and_then(|s| s.completion_time.clone()).unwrap_or_else(crate::store::now)),
            ..JobStatus::default()
        };
        if job.status.as_ref() != Some(&status) {
            self.put(Object::Job(Box::new(Job { status: Some(status), ..job })));
        }
    }
}

fn pod(job: &Job) -> Pod {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let template = job.spec.as_ref().map(|s| s.template.clone()).unwrap_or_default();
    let from = template.metadata.unwrap_or_default();
    let mut labels = from.labels.unwrap_or_default();
    labels.insert("job-name".to_owned(), name.to_owned());
    labels.insert("batch.kubernetes.io/job-name".to_owned(), name.to_owned());
    let owner = OwnerReference {
        api_version: "batch/v1".to_owned(),
        kind: "Job".to_owned(),
        name: name.to_owned(),
        uid: job.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    Pod {
        metadata: ObjectMeta {
            name: Some(format!("{name}-{}", crate::store::suffix())),
            namespace: job.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: from.annotations,
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}
