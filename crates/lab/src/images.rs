//! Container images to local programs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a container runs: program and arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Executable.
    pub path: PathBuf,
    /// The name it is to believe it has.
    pub arg0: String,
    /// Arguments.
    pub args: Vec<String>,
}

#[derive(Clone, Debug)]
struct Image {
    /// Default command, as the image's entry point.
    entry: Vec<String>,
}

/// The table of images.
#[derive(Clone, Debug)]
pub struct Images {
    known: BTreeMap<String, Image>,
    /// This binary: it answers as `fortio`.
    own: PathBuf,
}

/// Why a container cannot be run here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// Nothing local stands for the image.
    #[error("no local program stands for image {0:?}")]
    Unmapped(String),
    /// The program is not installed.
    #[error("program {program:?}, which stands for image {image:?}, is not on PATH")]
    NoProgram {
        /// The program.
        program: String,
        /// The image.
        image: String,
    },
    /// A mapping on the command line is malformed.
    #[error("{0:?} is not NAME=COMMAND")]
    Mapping(String),
}

impl ImageError {
    /// What to do.
    pub fn cure(&self) -> String {
        match self {
            Self::Unmapped(image) => format!("say what stands for it: --image '{}=COMMAND ARG…'", name(image)),
            Self::NoProgram { image, .. } => {
                format!("install it, or name another: --image '{}=COMMAND ARG…'", name(image))
            }
            Self::Mapping(_) => "for example --image 'library/redis=redis-server'".to_owned(),
        }
    }
}

/// The image's name without registry, tag and digest: `docker.io/fortio/fortio:1.69` is `fortio/fortio`.
fn name(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or(image);
    let slash = image.rfind('/').map_or(0, |at| at + 1);
    let image = match image.get(slash..).and_then(|last| last.find(':')) {
        Some(colon) => image.get(..slash + colon).unwrap_or(image),
        None => image,
    };
    match image.split_once('/') {
        Some((registry, rest)) if registry.contains(['.', ':']) => rest,
        _ => image,
    }
    .trim_start_matches("library/")
}

impl Images {
    /// The built-in table and `extra` mappings `NAME=COMMAND ARG…`. `own` is this binary.
    pub fn new(extra: &[String], own: PathBuf) -> Result<Self, ImageError> {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let mut known = BTreeMap::new();
        for (image, entry) in [
            ("fortio/fortio", "fortio"),
            ("trysail/orders", "trysail orders"),
            (trysail_control::inject::IMAGE, "trysail"),
            ("python", "python3"),
            ("busybox", "sh"),
            ("alpine", "sh"),
            ("debian", "sh"),
            ("ubuntu", "sh"),
            ("curlimages/curl", "curl"),
        ] {
            known.insert(image.to_owned(), Image { entry: words(entry) });
        }
        for mapping in extra {
            let (image, command) = mapping.split_once('=').ok_or_else(|| ImageError::Mapping(mapping.clone()))?;
            let entry = words(command);
            if image.is_empty() || entry.is_empty() {
                return Err(ImageError::Mapping(mapping.clone()));
            }
            known.insert(name(image).to_owned(), Image { entry });
        }
        Ok(Self { known, own })
    }

    /// What a container of `image` with its `command` and `args` runs.
    pub fn program(&self, image: &str, command: &[String], args: &[String]) -> Result<Program, ImageError> {
        let known = self.known.get(name(image)).ok_or_else(|| ImageError::Unmapped(image.to_owned()))?;
        let words: Vec<&String> = if command.is_empty() {
            known.entry.iter().chain(args).collect()
        } else {
            command.iter().chain(args).collect()
        };
        let (first, rest) = words.split_first().ok_or_else(|| ImageError::Unmapped(image.to_owned()))?;
        let args = rest.iter().map(|w| (*w).clone()).collect();
        self.resolve(first, args)
            .ok_or_else(|| ImageError::NoProgram { program: (*first).clone(), image: image.to_owned() })
    }

    /// A program by name: one on PATH, at its absolute path, by its name alone, or this binary where it can stand in.
    pub fn resolve(&self, program: &str, args: Vec<String>) -> Option<Program> {
        let base = Path::new(program).file_name()?.to_str()?.to_owned();
        let absolute = Path::new(program);
        let path =
            if absolute.is_absolute() && is_executable(absolute) { Some(absolute.to_owned()) } else { on_path(&base) };
        let own = matches!(base.as_str(), "fortio" | "trysail").then(|| PathBuf::from(OWN));
        Some(Program { path: path.or(own)?, arg0: base, args })
    }

    /// This binary, as this machine sees it.
    pub fn own(&self) -> &Path {
        &self.own
    }
}

/// This binary, as pods see it.
pub const OWN: &str = "/.trysail/bin/trysail";
/// The PATH of pods.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

fn on_path(program: &str) -> Option<PathBuf> {
    PATH.split(':').map(|dir| Path::new(dir).join(program)).find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_without_registry_and_tag() {
        for image in [
            "fortio/fortio",
            "fortio/fortio:1.69.4",
            "docker.io/fortio/fortio:1",
            "localhost:5000/fortio/fortio@sha256:ab",
        ] {
            assert_eq!(name(image), "fortio/fortio", "{image}");
        }
        assert_eq!(name("docker.io/library/python:3.12-alpine"), "python");
    }

    #[test]
    fn an_image_runs_its_entry_or_the_containers_command() {
        let images = Images::new(&["acme/app=sleep".into()], "/own".into()).unwrap();
        let run = |image, command: &[&str], args: &[&str]| {
            let list = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
            images.program(image, &list(command), &list(args)).map(|p| (p.path.file_name().unwrap().to_owned(), p.args))
        };
        assert_eq!(run("acme/app:2", &[], &["5"]).unwrap().1, ["5"]);
        assert_eq!(run("fortio/fortio", &[], &["server"]).unwrap(), ("trysail".into(), vec!["server".to_owned()]));
        assert_eq!(run("fortio/fortio", &["/usr/bin/fortio"], &["server"]).unwrap().0, "trysail");
        assert_eq!(run("acme/other", &[], &[]), Err(ImageError::Unmapped("acme/other".into())));
        assert!(matches!(run("acme/app", &["no-such-program"], &[]), Err(ImageError::NoProgram { .. })));
        assert!(Images::new(&["nonsense".into()], "/own".into()).is_err());
    }
}
