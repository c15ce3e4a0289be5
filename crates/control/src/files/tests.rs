use super::*;

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: NAME\n  namespace: ns\n";

fn names(changes: &[ObjectChange]) -> Vec<String> {
    changes.iter().map(|(key, object)| format!("{}{}", if object.is_some() { "+" } else { "-" }, key.name)).collect()
}

#[tokio::test]
async fn a_folder_is_followed_and_a_broken_file_changes_nothing() {
    let dir = std::env::temp_dir().join(format!("trysail-folder-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("a.yaml"), POD.replace("NAME", "a")).unwrap();
    let mut folder = Folder::open(&dir).unwrap();
    assert_eq!(names(&folder.all().unwrap()), ["+a"]);
    let two = format!("{}---\n{}", POD.replace("NAME", "a"), POD.replace("NAME", "b"));
    let put = |text: &str| {
        std::fs::write(dir.join(".tmp"), text).unwrap();
        std::fs::rename(dir.join(".tmp"), dir.join("a.yaml")).unwrap();
    };
    put(&two);
    let mut seen = Vec::new();
    while seen.len() < 2 {
        seen.extend(folder.changes().await.unwrap());
    }
    assert_eq!(names(&seen), ["+a", "+b"]);
    put(&format!("{}---\nkind: [\n", POD.replace("NAME", "b")));
    let mut seen = Vec::new();
    while seen.is_empty() {
        seen = folder.changes().await.unwrap();
    }
    assert_eq!(names(&seen), ["+b"], "a is not taken away by a file that cannot be read whole");
    std::fs::remove_file(dir.join("a.yaml")).unwrap();
    let mut seen = Vec::new();
    while seen.is_empty() {
        seen = folder.changes().await.unwrap();
    }
    assert_eq!(names(&seen), ["-a", "-b"]);
    std::fs::remove_dir_all(dir).unwrap();
}

#[tokio::test]
async fn an_object_that_moves_to_another_file_is_not_taken_away() {
    let dir = std::env::temp_dir().join(format!("trysail-move-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let both = format!("{}---\n{}", POD.replace("NAME", "stays"), POD.replace("NAME", "moves"));
    std::fs::write(dir.join("z.yaml"), both).unwrap();
    let mut folder = Folder::open(&dir).unwrap();
    folder.all().unwrap();
    std::fs::write(dir.join("a.yaml"), POD.replace("NAME", "moves")).unwrap();
    std::fs::write(dir.join("z.yaml"), POD.replace("NAME", "stays")).unwrap();
    let changes = folder.all().unwrap();
    assert_eq!(names(&changes), ["+moves", "+stays"]);
    std::fs::remove_dir_all(dir).unwrap();
}
